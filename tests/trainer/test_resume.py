"""Callbacks that keep and end trainings, and trainings that go on after they were stopped."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests import fork_server
from tests.children import environment
from tests.trainer.tiny import make_loader, make_trainer, rows_of
from trackside.callbacks import (
    Callback,
    CallbackConfig,
    CallbackList,
    CheckpointConfig,
    EarlyStopping,
    EarlyStoppingConfig,
    LearningRateMonitor,
    ModelCheckpoint,
    ProgressBarCallback,
)
from trackside.errors import CheckpointError, ConfigError
from trackside.logger import LoggerConfig
from trackside.trainer import Batch, DataloaderModule

VAL = make_loader(1, seed=50)


def noise(num_batches: int) -> list[Batch]:
    """Batches from which nothing about the others can be learned."""
    return [Batch(batch.inputs, batch.targets + 100) for batch in make_loader(num_batches, seed=70)]


def test_early_stopping_by_patience() -> None:
    """Training ends after as many validations without improvement as patience says, and counts as done."""
    trainer = make_trainer(lr=0.0)
    trainer.fit(
        make_loader(2),
        VAL,
        num_epochs=20,
        callbacks=[EarlyStopping(EarlyStoppingConfig(monitor="val_loss", patience=3))],
    )
    assert trainer.epoch == 4
    assert trainer.status == "success"


def test_early_stopping_is_remembered(tmp_path: Path) -> None:
    """A training that was stopped early and saved is not trained any further by running it again."""
    trainers = []
    for _ in range(2):
        trainer = make_trainer(lr=0.0, resume="auto")
        stopper = EarlyStopping(EarlyStoppingConfig(patience=2))
        trainer.fit(make_loader(2), VAL, num_epochs=20, callbacks=[stopper, checkpointing(tmp_path)])
        trainers.append(trainer)
    assert [trainer.global_step for trainer in trainers] == [6, 6]


class AddsBonus(Callback):
    """Adds a metric of its own."""

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        train_metrics["bonus"] = np.float32(epoch_idx)


def test_a_finished_training_that_is_started_again_returns_its_metrics(tmp_path: Path) -> None:
    """There is nothing to train, and the results are those of the start that trained."""
    results = []
    for _ in range(2):
        trainer = make_trainer(resume="auto")
        results.append(trainer.fit(make_loader(2), num_epochs=2, callbacks=[AddsBonus(), checkpointing(tmp_path)]))
    assert results[0] == results[1]
    assert results[1]["train"]["bonus"] == 2


@pytest.mark.parametrize("monitor", ["val_loss", "val/loss", "loss", "train_loss", "train/loss_mean"])
def test_monitors_by_the_names_users_write(monitor: str) -> None:
    """A metric is found by its stage and name however they are joined."""
    stopper = EarlyStopping(EarlyStoppingConfig(monitor=monitor, stopping_threshold=1e9))
    trainer = make_trainer()
    trainer.fit(make_loader(1), VAL, num_epochs=5, callbacks=[stopper])
    assert trainer.epoch == 1


def test_monitor_that_never_appears() -> None:
    """A monitor that is no metric is an error that lists those that are."""
    with pytest.raises(ConfigError, match=r"val_acc.*loss"):
        make_trainer().fit(
            make_loader(1), VAL, num_epochs=3, callbacks=[EarlyStopping(EarlyStoppingConfig(monitor="val_acc"))]
        )


def test_fit_uses_the_loaders_set_before() -> None:
    """With loaders set, fit trains one epoch unless told otherwise; without any it says what is missing."""
    trainer = make_trainer()
    with pytest.raises(ConfigError, match="train_loader"):
        trainer.fit()
    trainer.set_dataset(DataloaderModule(train_dataloader=make_loader(3), val_dataloader=VAL))
    results = trainer.fit(callbacks=CallbackList([ProgressBarCallback()]))
    assert trainer.global_step == 3
    assert "val" in results
    assert len(trainer.callbacks) == 0


def test_learning_rate_is_logged(run_config: LoggerConfig) -> None:
    """The learning rate goes with the epoch's metrics."""
    trainer = make_trainer(logger=run_config, lr=0.25)
    trainer.fit(make_loader(1), callbacks=[LearningRateMonitor()])
    assert rows_of(run_config.log_path, mode="train_epoch")[0]["values"]["learning_rate"] == 0.25


class Raising(Callback):
    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        raise RuntimeError("broken")


def test_raising_callback_is_named() -> None:
    """An error in a callback names it; with on_error="warn" training goes on without it."""
    with pytest.raises(RuntimeError) as caught:
        make_trainer().fit(make_loader(1), callbacks=[Raising(CallbackConfig())])
    assert any("Raising.on_training_epoch_end" in note for note in caught.value.__notes__)
    trainer = make_trainer()
    trainer.fit(make_loader(1), num_epochs=3, callbacks=[Raising(CallbackConfig(on_error="warn"))])
    assert trainer.status == "success"


def checkpointing(directory: Path, **config: Any) -> ModelCheckpoint:
    return ModelCheckpoint(CheckpointConfig(dirpath=str(directory), **config))


def steps_in(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def test_best_and_latest_are_kept(tmp_path: Path) -> None:
    """After a training that gets worse, the best checkpoint and the latest are there, and the test is on the best."""
    loaders = [*make_loader(5), *noise(5)]
    trainer = make_trainer()
    results = trainer.fit(
        loaders, VAL, VAL, num_epochs=2, steps_per_epoch=5, callbacks=[checkpointing(tmp_path, monitor="val_loss")]
    )
    assert steps_in(tmp_path) == [5, 10]
    assert results["test"]["loss"] == results["val_epoch_1"]["loss"] < results["val_epoch_2"]["loss"]
    assert trainer.global_step == 10


def test_without_monitor_the_latest_is_kept(tmp_path: Path) -> None:
    """Without a monitor and with a cadence in steps, the latest is there, and one to fall back to."""
    make_trainer().fit(make_loader(10), callbacks=[checkpointing(tmp_path, every_n_steps=3, every_n_epochs=-1)])
    assert steps_in(tmp_path) == [6, 9]


def test_foreign_checkpoints_are_not_overwritten(tmp_path: Path) -> None:
    """With resume="never", a folder that holds another run's checkpoints is refused by name."""
    make_trainer().fit(make_loader(2), callbacks=[checkpointing(tmp_path)])
    with pytest.raises(CheckpointError, match=f"{tmp_path}.*resume='auto'"):
        make_trainer().fit(make_loader(2), callbacks=[checkpointing(tmp_path)])


def test_resume_must_find_something(tmp_path: Path) -> None:
    """With resume="must", an empty folder is an error; with "auto", training starts."""
    with pytest.raises(CheckpointError, match="no checkpoint"):
        make_trainer(resume="must").fit(make_loader(2), callbacks=[checkpointing(tmp_path)])
    trainer = make_trainer(resume="auto")
    trainer.fit(make_loader(2), callbacks=[checkpointing(tmp_path)])
    assert trainer.global_step == 2


class StopError(Exception):
    pass


def failing_after(loader: list[Batch], num_batches: int) -> Iterator[Batch]:
    yield from loader[:num_batches]
    raise StopError


class FailingOnce:
    """A loader that fails in its first pass."""

    def __init__(self, loader: list[Batch], num_batches: int):
        self.loader, self.num_batches = loader, num_batches

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        return failing_after(self.loader, self.num_batches)


def test_resumed_training_is_bit_identical(tmp_path: Path) -> None:
    """A training that died in an epoch and went on gives the parameters of one that did not, patience included."""
    loader = make_loader(5)

    def callbacks(folder: str) -> list[Callback]:
        return [
            EarlyStopping(EarlyStoppingConfig(patience=50)),
            checkpointing(tmp_path / folder, every_n_steps=2, save_top_k=-1),
        ]

    whole = make_trainer()
    whole.fit(loader, VAL, num_epochs=3, callbacks=callbacks("whole"))
    with pytest.raises(StopError):
        make_trainer(resume="auto").fit(FailingOnce(loader, 4), VAL, num_epochs=3, callbacks=callbacks("cut"))
    again = make_trainer(resume="auto", seed=0)
    added = callbacks("cut")
    again.fit(loader, VAL, num_epochs=3, callbacks=added)
    jax.tree.map(np.testing.assert_array_equal, whole.state.params, again.state.params)
    jax.tree.map(np.testing.assert_array_equal, whole.state.opt_state, again.state.opt_state)
    assert again.global_step == 15
    assert isinstance(added[0], EarlyStopping)
    assert added[0].best_score is not None


@pytest.mark.usefixtures("default_signals")
def test_interrupt_saves_and_says_so(tmp_path: Path, run_config: LoggerConfig) -> None:
    """Ctrl-C finishes the step, saves it unless told not to, and the run's status is interrupted."""

    class Interrupting:
        def __len__(self) -> int:
            return 6

        def __iter__(self) -> Iterator[Batch]:
            for index, batch in enumerate(make_loader(6)):
                if index == 3:
                    signal.raise_signal(signal.SIGINT)
                yield batch

    for saves, expected in ((True, [4]), (False, [])):
        folder = tmp_path / str(saves)
        folder.mkdir()
        trainer = make_trainer(logger=run_config, save_on_interrupt=saves)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(Interrupting(), num_epochs=2, callbacks=[checkpointing(folder)])
        assert steps_in(folder) == expected
        assert rows_of(run_config.log_path, "status")[-1]["status"] == "interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_poisoned_state_is_not_saved(tmp_path: Path) -> None:
    """A training that turns NaN leaves the last good checkpoint, and no other."""
    loader = make_loader(6)
    loader[4].inputs[:] = np.nan
    trainer = make_trainer()
    trainer.fit(loader, VAL, num_epochs=2, callbacks=[checkpointing(tmp_path, every_n_steps=2, save_top_k=-1)])
    assert trainer.status == "nan"
    assert steps_in(tmp_path) == [2, 4]


@pytest.mark.slow
def test_hanging_training_is_ended(tmp_path: Path) -> None:
    """A training whose loader hangs ends with exit code 78 and shows the stacks."""
    code = """
import threading
from tests.trainer.tiny import make_loader, make_trainer
def hanging():
    yield from make_loader(3)
    threading.Event().wait()
trainer = make_trainer()
trainer.train_model(make_loader(3), num_epochs=1)  # to compile takes longer than the watchdog waits, on a busy machine
trainer.trainer_config.watchdog_timeout_s = 3.0
trainer.train_model(hanging(), num_epochs=2)
"""
    ended = fork_server.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(),
    )
    assert ended.returncode == 78
    assert "hanging" in ended.stderr


class ByHand:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 1.0
        return self.seconds

    timestamp = now


def test_checkpoints_by_minutes(tmp_path: Path) -> None:
    """A cadence in minutes saves when they have passed, also in the middle of an epoch."""
    config = CheckpointConfig(dirpath=str(tmp_path), every_n_minutes=0.01, every_n_epochs=-1, save_top_k=-1)
    make_trainer().fit(make_loader(40), callbacks=[ModelCheckpoint(config, clock=ByHand())])
    assert steps_in(tmp_path) == [16, 32, 40]
