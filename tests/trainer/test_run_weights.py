"""A trainer that looks at the run in its folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.models.libraries import KITS, make_data
from trackside.callbacks import CheckpointConfig
from trackside.runs import open_run
from trackside.trainer import OptimizerConfig, ParallelConfig, SchedulerConfig, Trainer, TrainerConfig

DATA = make_data(2)
KIT = KITS["functions"]


def make_trainer(run: Path, optimizer: str = "adam", **config: Any) -> Trainer:
    return Trainer(
        KIT.plain(),
        KIT.loss,
        OptimizerConfig(name=optimizer, scheduler=SchedulerConfig(name="constant", lr=0.1)),
        run=run,
        config=TrainerConfig(enable_progress_bar=False, **config),
        parallel=ParallelConfig(data_axis_size=1),
    )


@pytest.fixture
def trained(tmp_path: Path) -> Trainer:
    trainer = make_trainer(tmp_path / "run")
    trainer.fit(DATA, num_epochs=2)
    return trainer


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_finished_run_is_evaluated_with_its_weights(trained: Trainer, optimizer: str, tmp_path: Path) -> None:
    """Evaluation and prediction are those of the trained model, also by a trainer with another optimizer."""
    again = make_trainer(tmp_path / "run", optimizer)
    assert again.evaluate(DATA)["loss"] == trained.evaluate(DATA)["loss"]
    np.testing.assert_array_equal(again.predict(DATA), trained.predict(DATA))


def test_looking_leaves_no_trace(trained: Trainer, tmp_path: Path) -> None:
    """The folder is as it was, and a training after it starts a run of its own with the model that was given."""
    before = sorted((path, path.stat().st_size) for path in tmp_path.rglob("*"))
    again = make_trainer(tmp_path / "run")
    again.evaluate(DATA)
    assert sorted((path, path.stat().st_size) for path in tmp_path.rglob("*")) == before
    again.fit(DATA, num_epochs=1)
    assert again.module.global_step == 2
    assert open_run(tmp_path / "run-2").status == "success"


def test_run_without_checkpoints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The model is evaluated as it was given, and the log says so; a folder that the config names is looked into."""
    elsewhere = [CheckpointConfig(dirpath=str(tmp_path / "elsewhere"))]
    make_trainer(tmp_path / "run", callbacks=elsewhere).fit(DATA, num_epochs=1)
    make_trainer(tmp_path / "run").evaluate(DATA)
    assert "the model is evaluated as it was given" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "trackside.trainer.trainer"):
        make_trainer(tmp_path / "run", callbacks=elsewhere).evaluate(DATA)
    assert "the model is that of step 2" in caplog.text
