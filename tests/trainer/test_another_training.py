"""Trainings that follow another: with other settings, with the same callbacks, or with nothing left to do."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tiny import make_loader, make_trainer
from trackside.callbacks import (
    CheckpointConfig,
    EarlyStopping,
    EarlyStoppingConfig,
    EMAConfig,
    JAXProfiler,
    ModelCheckpoint,
    ProfilingConfig,
)
from trackside.errors import CheckpointError

VAL = make_loader(1, seed=50)


def train(folder: Path, num_epochs: int, added: Any = (), **options: Any) -> Any:
    trainer = make_trainer(resume="auto", **options)
    saving = ModelCheckpoint(CheckpointConfig(str(folder)))
    trainer.fit(make_loader(2), num_epochs=num_epochs, callbacks=[saving, *added])
    return trainer


def test_changed_settings_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run that resumes with other settings says which, with both values; one that does not says nothing."""
    train(tmp_path, 1, lr=0.01)
    train(tmp_path, 2, lr=0.01)
    assert "resumes with" not in caplog.text
    train(tmp_path, 3, lr=0.5)
    assert "the run resumes with 1 setting changed:\n  optimizer.scheduler.lr: 0.01 -> 0.5" in caplog.text


@pytest.mark.parametrize("in_config", [True, False])
def test_added_callback_is_named_as_the_cause(tmp_path: Path, in_config: bool) -> None:
    """A state that does not fit since a callback extends the optimizer is refused with that callback's name."""
    train(tmp_path, 1)
    average = EMAConfig(decay=0.9)
    with pytest.raises(CheckpointError, match=r"cannot be resumed; since it was saved.*\n  callback EMA was added\n"):
        train(tmp_path, 2, **{"callbacks" if in_config else "added": [average]})


def test_another_optimizer_is_named_as_the_cause(tmp_path: Path) -> None:
    """A state that does not fit since the optimizer is another one is refused with both names."""
    train(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"since it was saved.*\n  optimizer\.name: 'sgd' -> 'adam'\n"):
        train(tmp_path, 2, optimizer="adam")


def test_early_stopping_begins_again_with_another_trainer() -> None:
    """A callback that has stopped one training does not stop the next trainer's at its first step."""
    stopper = EarlyStopping(EarlyStoppingConfig(patience=2))
    epochs = []
    for _ in range(2):
        trainer = make_trainer(lr=0.0)
        trainer.fit(make_loader(1), VAL, num_epochs=9, callbacks=[stopper])
        epochs.append(trainer.epoch)
    assert epochs == [3, 3]


def test_profiler_begins_again_with_another_trainer(tmp_path: Path) -> None:
    """A profiler whose window is over takes the same window of the next trainer's training."""
    profiler = JAXProfiler(ProfilingConfig(log_dir=str(tmp_path), start_step=2, end_step=4, on_demand=False))
    num_sessions = []
    for _ in range(2):
        make_trainer().fit(make_loader(6), callbacks=[profiler])
        num_sessions.append(len(list((tmp_path / "plugins" / "profile").iterdir())))
    assert num_sessions == [1, 2]


def test_training_with_nothing_left_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """A second call with the same total trains nothing, and says how to train on, for epochs and for steps."""
    trainer, loader = make_trainer(), make_loader(3)
    trainer.fit(loader)
    assert "nothing to train" not in caplog.text
    trainer.fit(loader)
    expected = "already at step 3 of 3; num_epochs counts from the beginning: pass 2 to train one more"
    assert f"nothing to train: {expected}" in caplog.text
    trainer.fit(loader, num_train_steps=2)
    assert "already at step 3 of 2; num_train_steps counts from the beginning: pass 4 to train one more" in caplog.text
    assert trainer.global_step == 3
