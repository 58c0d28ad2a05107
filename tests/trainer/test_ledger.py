"""Where the time of a training went: real delays are put into one part, and are found there."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.tiny import MSETrainer, make_loader, make_trainer, rows_of
from trackside.callbacks import Callback, CallbackConfig, CheckpointConfig, ModelCheckpoint
from trackside.logger import LoggerConfig
from trackside.profiling import timers
from trackside.profiling.ledger import LedgerTotals
from trackside.trainer import Batch, step_meter

NUM_STEPS = 30
DELAY_S = 0.02


class SlowLoader:
    """A loader that takes its time for each batch."""

    def __init__(self, num_batches: int, delay_s: float):
        self._batches = make_loader(num_batches)
        self._delay_s = delay_s

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            time.sleep(self._delay_s)
            yield batch


class Sleeper(Callback):
    """Takes its time in a hook."""

    def __init__(self, **hooks: float):
        super().__init__(CallbackConfig())
        self._hooks = hooks

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        time.sleep(self._hooks.get("step", 0.0))

    def on_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        time.sleep(self._hooks.get("validation", 0.0))


def train(tmp_path: Path | None = None, loader: Any = None, **kwargs: Any) -> LedgerTotals:
    trainer = make_trainer(logger=None if tmp_path is None else LoggerConfig(log_path=tmp_path))
    trainer.fit(make_loader(NUM_STEPS) if loader is None else loader, **kwargs)
    return trainer.ledger_totals


def test_parts_sum_to_the_wall() -> None:
    """Every moment counts for exactly one part."""
    totals = train(val_loader=make_loader(1), num_epochs=2)
    assert sum(totals.parts.values()) == pytest.approx(totals.wall_s)
    assert totals.num_steps == 2 * NUM_STEPS
    assert totals.num_samples == 2 * NUM_STEPS * 8
    assert min(totals.parts.values()) >= 0


class ScaledTrainer(MSETrainer):
    """Batches are dicts, whose first leaf is a number."""

    @staticmethod
    def batch_to_input(batch: Any) -> Any:
        return batch["x"]

    def loss_function(self, params: Any, apply_fn: Any, batch: Any, rng: Any, train: bool = True) -> Any:
        scaled = Batch(batch["x"], batch["y"] * batch["scale"])
        return super().loss_function(params, apply_fn, scaled, rng, train)


def test_samples_of_batches_that_begin_with_a_number() -> None:
    """Examples are counted where arrays have a length, whatever else is in a batch."""
    loader = [{"scale": np.float32(1), "x": batch.inputs, "y": batch.targets} for batch in make_loader(NUM_STEPS)]
    trainer = make_trainer(ScaledTrainer, batch=loader[0])
    trainer.fit(loader)
    assert trainer.ledger_totals.num_samples == NUM_STEPS * 8


def test_compile_is_a_part_of_its_own() -> None:
    """Compiling the step counts as that, not as dispatch."""
    totals = train()
    assert totals.parts["compile"] > 10 * totals.parts["dispatch"]


def test_slow_loader_is_data_wait() -> None:
    """What a loader takes is data wait, and the device idles meanwhile for that reason."""
    totals = train(loader=SlowLoader(NUM_STEPS, DELAY_S))
    assert totals.parts["data_wait"] >= NUM_STEPS * DELAY_S
    assert totals.idle_share is not None
    assert totals.idle_share > 0.5
    assert max(totals.idle_by_reason, key=lambda reason: totals.idle_by_reason[reason]) == "data_wait"


def test_slow_callback_is_named() -> None:
    """What a callback takes is counted under its name."""
    totals = train(callbacks=[Sleeper(step=DELAY_S)])
    assert totals.parts["callback/Sleeper"] >= NUM_STEPS * DELAY_S


def test_callback_inside_validation_counts_for_itself() -> None:
    """A hook that is called by validation is the callback's time, and no part of validation's."""
    totals = train(val_loader=make_loader(1), callbacks=[Sleeper(validation=10 * DELAY_S)])
    assert totals.parts["callback/Sleeper"] >= 10 * DELAY_S
    assert totals.parts["validation"] > 0


def test_checkpoint_counts_as_checkpointing(tmp_path: Path) -> None:
    """What a checkpoint takes is no part of the callback that asks for it."""
    config = CheckpointConfig(dirpath=str(tmp_path / "checkpoints"), every_n_steps=5)
    totals = train(callbacks=[ModelCheckpoint(config)])
    assert totals.parts["checkpointing"] > totals.parts["callback/ModelCheckpoint"]


def test_totals_and_rows_are_logged(tmp_path: Path) -> None:
    """The event file has the totals, and a row of the epoch's time for people, with throughput."""
    totals = train(tmp_path)
    row = rows_of(tmp_path, "ledger")[-1]
    assert LedgerTotals.from_dict({name: row[name] for name in totals.to_dict()}) == totals
    values = rows_of(tmp_path, mode="time")[-1]["values"]
    assert values["samples_per_second"] == pytest.approx(8 * values["steps_per_second"])
    parts = [value for name, value in values.items() if name.endswith("_ms")]
    assert sum(parts) == pytest.approx(1e3 / values["steps_per_second"])


class Interrupted(Callback):
    """Somebody presses Ctrl-C in the middle of the epoch."""

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        if step_idx == NUM_STEPS // 2:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("default_signals")
def test_interrupted_training_logs_the_time_of_its_last_steps(tmp_path: Path) -> None:
    """A training that ends within an epoch has a row of where the time went, up to its last step."""
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=[Interrupted(CallbackConfig())])
    (row,) = rows_of(tmp_path, "leg_end")
    assert rows_of(tmp_path, mode="time")[-1]["step"] == row["step"] < NUM_STEPS


def test_timers_of_the_users_code_are_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process's own profiler logs during a training is in its event file, and not after it."""
    monkeypatch.setattr("trackside.profiling.timers.training_profiler._global", None)

    class Timed(Sleeper):
        def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
            with timers.get_profiler().time("augmentation"):
                pass
            timers.get_profiler().log_metrics(self.trainer.global_step)

    train(tmp_path, callbacks=[Timed()])
    (row,) = rows_of(tmp_path, "profiling")
    assert row["operations"]["augmentation"]["count"] == 1
    assert timers.get_profiler().events is None


def test_what_is_severe_is_told_once_during_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While there is time to do something about it, and not again each time that it is looked at."""
    monkeypatch.setattr(step_meter, "SAVE_EVERY_S", 0.0)
    monkeypatch.setattr(step_meter, "LOG_EVERY_S", 0.2)
    train(tmp_path, SlowLoader(4 * NUM_STEPS, DELAY_S))
    assert (
        len([record for record in caplog.records if "input-bound" in record.message and record.levelname == "WARNING"])
        == 1
    )
