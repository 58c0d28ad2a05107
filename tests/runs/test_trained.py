"""Runs that were really trained. One of two processes is in `tests/callbacks/test_profiler_processes.py`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.tiny import make_loader, make_trainer, rows_of
from trackside.callbacks import CheckpointConfig, ModelCheckpoint
from trackside.logger import LoggerConfig
from trackside.runs import open_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A trainer that has trained two epochs of 30 steps, and its folder."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    trainer = make_trainer(logger=LoggerConfig(log_path=folder, log_every_n_steps=5))
    checkpoint = ModelCheckpoint(CheckpointConfig(dirpath=str(folder / "checkpoints"), monitor="loss"))
    trainer.fit(make_loader(30), make_loader(2, seed=50), num_epochs=2, callbacks=[checkpoint])
    return trainer, folder


def test_run_tells_what_the_trainer_knew(trained: tuple[Any, Path]) -> None:
    """Step, status, ledger and findings are the trainer's own, and nothing is wrong with the files."""
    trainer, folder = trained
    run = open_run(folder)
    assert (run.status, run.step, run.epoch, run.problems) == ("success", 60, 2, [])
    assert run.ledger == trainer.ledger_totals
    assert run.findings == list(trainer.findings)
    assert [(leg.first_step, leg.last_step, leg.status) for leg in run.legs] == [(0, 60, "success")]
    assert run.config["trainer"]["logger"]["log_every_n_steps"] == 5


def test_metrics_are_those_of_the_rows(trained: tuple[Any, Path]) -> None:
    """Each mode has the steps and values of its rows."""
    _, folder = trained
    metrics = open_run(folder).metrics
    assert {"train", "val", "train_epoch", "time"} <= set(metrics)
    for mode, table in metrics.items():
        rows = rows_of(folder, mode=mode)
        assert set(table.step.tolist()) == {row["step"] for row in rows}
        for row in rows:
            index = int(np.searchsorted(table.step, row["step"]))
            assert {name: table[name][index] for name in row["values"]} == pytest.approx(row["values"], nan_ok=True)


def test_step_times_are_marked(trained: tuple[Any, Path]) -> None:
    """The first steps are warm-up, and the steps after validation and checkpoint are disturbed."""
    times = open_run(trained[1]).step_times
    assert times.step.tolist() == list(range(5, 61, 5))
    assert times.warm_up[0]
    assert not times.clean[times.step == 35][0]
