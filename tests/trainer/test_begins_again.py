"""Trainings that lose their log or their start: nothing is shown twice, and nothing goes missing unnoticed."""

import csv
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tiny import make_loader, make_trainer, rows_of
from trackside.callbacks import Callback, CallbackConfig, CheckpointConfig, LearningRateMonitorConfig
from trackside.errors import ConfigError
from trackside.logger import FileLoggerConfig, LoggerConfig, TensorBoardLoggerConfig
from trackside.trainer import Batch


class KilledError(BaseException):
    pass


def dying(num_batches: int) -> Iterator[Batch]:
    yield from make_loader(num_batches)
    raise KilledError


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard.*")
def test_training_that_died_before_its_first_checkpoint(tmp_path: Path) -> None:
    """Begun again by the same command, each step is in the tables and in TensorBoard once, and so is the config."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def build() -> Any:
        tools = [FileLoggerConfig(), TensorBoardLoggerConfig()]
        return make_trainer(
            logger=LoggerConfig(log_path=tmp_path, log_every_n_steps=1, log_tools=tools),
            callbacks=[CheckpointConfig(), LearningRateMonitorConfig(every_n_steps=1)],
            resume="auto",
        )

    with pytest.raises(KilledError):
        build().train_model(dying(3), num_epochs=1)
    build().train_model(make_loader(4), num_epochs=1)
    with (tmp_path / "metrics" / "train.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows if row["loss_mean"]] == [1, 2, 3, 4]
    assert [int(row["step"]) for row in rows if row["learning_rate"]] == [1, 2, 3, 4]
    shown = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    scalars = shown.Scalars if "train/loss_mean" in shown.Tags()["scalars"] else shown.Tensors
    assert [event.step for event in scalars("train/loss_mean")] == [1, 2, 3, 4]
    assert any(tag.startswith("config") for tag in shown.Tags()["tensors"])


def test_second_call_of_one_trainer_drops_nothing(tmp_path: Path) -> None:
    """A trainer that trains on keeps the rows of its first call."""
    trainer = make_trainer(
        logger=LoggerConfig(log_path=tmp_path, log_every_n_steps=1, log_tools=[FileLoggerConfig()]),
        callbacks=[CheckpointConfig()],
        resume="auto",
    )
    for num_epochs in (1, 2):
        trainer.train_model(make_loader(2), num_epochs=num_epochs)
    assert len((tmp_path / "metrics" / "train.csv").read_text().splitlines()) == 5


class Deleting(Callback):
    """Deletes the run's folder after a step."""

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        if step_idx == 2:
            shutil.rmtree(self.trainer.logger.log_path)


def test_deleted_run_folder_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run whose folder is deleted trains to its end, and says once that its log is lost."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"))
    with caplog.at_level(logging.ERROR):
        trainer.fit(make_loader(4), num_epochs=3, callbacks=[Deleting(CallbackConfig())])
    assert (trainer.global_step, trainer.status) == (12, "success")
    assert caplog.text.count("was deleted while the run writes to it") == 1


@pytest.mark.parametrize(("num_epochs", "num_train_steps"), [(2**30, None), (None, 2**31)])
def test_more_steps_than_can_be_counted(num_epochs: int | None, num_train_steps: int | None, tmp_path: Path) -> None:
    """A goal that the step count cannot reach is refused before the first step."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path))
    with pytest.raises(ConfigError, match="choose at most 2,147,483,647"):
        trainer.train_model(make_loader(2), num_epochs=num_epochs, num_train_steps=num_train_steps)
    assert rows_of(tmp_path, mode="train") == []
