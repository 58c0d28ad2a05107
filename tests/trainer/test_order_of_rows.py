"""Rows of steps are written a few at a time, and nothing else that is logged gets ahead of them."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.trainer.tiny import make_loader, make_trainer, rows_of
from trackside.callbacks import Callback, CallbackConfig, JAXProfiler, ProfilingConfig
from trackside.logger import LoggerConfig
from trackside.measured_run import step_meter

NUM_STEPS = 60


class LogsToo(Callback):
    """Logs a number of its own after each step."""

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        self.trainer.logger.log_host_metrics({"own": 1.0}, step_idx, mode="own")


def test_rows_come_in_the_order_of_their_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of steps, of callbacks, of captures and about time are logged with steps that never go backwards."""
    monkeypatch.setattr(step_meter, "LOG_EVERY_S", 0.001)
    monkeypatch.setattr(step_meter, "LOG_SHARE", 1.0)
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"))
    profiler = JAXProfiler(ProfilingConfig(str(tmp_path / "profiles"), 10, 20))
    trainer.fit(make_loader(NUM_STEPS), make_loader(1), callbacks=[LogsToo(CallbackConfig()), profiler])
    rows = rows_of(tmp_path / "run")
    assert {row["mode"] for row in rows} == {"train", "own", "time", "profile", "train_epoch", "val"}
    assert all(earlier["step"] <= later["step"] for earlier, later in pairwise(rows))
    for mode in ("train", "own"):
        assert [row["step"] for row in rows if row["mode"] == mode] == list(range(1, NUM_STEPS + 1))


class Evaluates(Callback):
    """Evaluates between two steps."""

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        if step_idx % 10 == 0:
            self.trainer.eval_model(make_loader(1), "probe", epoch_idx + 6)


def test_an_evaluation_between_steps_leaves_their_rows_to_the_training(tmp_path: Path) -> None:
    """Rows that wait when a callback evaluates keep their mode and their epoch."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"))
    trainer.fit(make_loader(NUM_STEPS), callbacks=[Evaluates(CallbackConfig())])
    rows = rows_of(tmp_path / "run")
    train = [(row["step"], row["epoch"]) for row in rows if row["mode"] == "train"]
    assert train == [(step, 1) for step in range(1, NUM_STEPS + 1)]
    assert [row["epoch"] for row in rows if row["mode"] == "probe"] == [7] * (NUM_STEPS // 10)
