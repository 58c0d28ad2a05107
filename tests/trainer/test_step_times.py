"""Step times of a training, held against the ends of its steps on a device whose times are known exactly.

The trainer is the real one. Its compiled step is put on a played device: what it returns is ready at a time that is
known, on a clock that only the loader and waiting for the device move.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.profiling.played_device import BlindWatch, ExactWatch, PlayedDevice
from tests.trainer.tiny import MSETrainer, make_loader, make_trainer
from trackside.callbacks import Callback, CheckpointConfig, ModelCheckpoint
from trackside.clock import ManualClock
from trackside.logger import LoggerConfig
from trackside.profiling import call_ends
from trackside.runs import open_run
from trackside.schedule import Every
from trackside.trainer import Batch
from trackside.trainer.engine import Engine

STEPS_PER_EPOCH = 20
NUM_EPOCHS = 3
STEP_S, SPIKE_S, DATA_S = 0.003, 0.007, 0.010
SPIKE_EVERY = 7


class SlowLoader:
    """Takes its time for each batch."""

    def __init__(self, clock: ManualClock, data_s: float):
        self._clock, self._data_s = clock, data_s
        self._batches = make_loader(STEPS_PER_EPOCH)

    def __len__(self) -> int:
        return STEPS_PER_EPOCH

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            self._clock.advance(self._data_s)
            yield batch


class Played:
    """A training on a played device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, watch: type, has_spikes: bool = True):
        self.clock = clock = ManualClock(1000.0)
        self.device = device = PlayedDevice(clock)
        self._has_spikes = has_spikes
        monkeypatch.setattr(call_ends, "CompletionWatch", watch)
        train_call = Engine.train_call

        def played_train_call(engine: Engine, layout: Any) -> Any:
            call = train_call(engine, layout)

            def played(carry: Any, vector: Any, batch: Any) -> Any:
                carry, vector = call(carry, getattr(vector, "value", vector), batch)
                return carry, device.call(self._next_step_s(), vector)

            return played

        monkeypatch.setattr(Engine, "train_call", played_train_call)

    def _next_step_s(self) -> float:
        return SPIKE_S if self._has_spikes and len(self.device.ends_s) % SPIKE_EVERY == 0 else STEP_S

    def train(self, run: Path, data_s: float, log_every_n_steps: int = 1, val: int = -1, **kwargs: Any) -> Any:
        """Train, and give the step times of the run, with what they should be."""
        trainer_class = type("PlayedTrainer", (MSETrainer,), {"clock": self.clock})
        trainer = make_trainer(
            trainer_class,
            logger=LoggerConfig(log_path=run, log_every_n_steps=log_every_n_steps),
            check_val_every_n_steps=val,
            check_val_every_n_epoch=1 if val > 0 else -1,
            steps_per_call=1,
        )
        loaders = SlowLoader(self.clock, data_s), make_loader(1) if val > 0 else None
        trainer.fit(*loaders, num_epochs=NUM_EPOCHS, **kwargs)
        times = open_run(run).step_times
        ends_s = np.array([1000.0, *self.device.ends_s])
        return times, (ends_s[times.step] - ends_s[times.step - times.num_steps]) / times.num_steps


@pytest.mark.parametrize("data_s", [0.0, DATA_S])
@pytest.mark.parametrize(("log_every_n_steps", "val"), [(1, -1), (1, 13), (3, -1)])
def test_rows_are_the_devices_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_s: float, log_every_n_steps: int, val: int
) -> None:
    """Every row has what its steps took on the device: at the ends of epochs, around validations, slow steps too."""
    played = Played(monkeypatch, ExactWatch)
    times, true_s = played.train(tmp_path, data_s, log_every_n_steps, val)
    assert times.step[-1] == NUM_EPOCHS * STEPS_PER_EPOCH
    assert times.seconds[1:] == pytest.approx(true_s[1:], abs=1e-9)  # the first has the compilation


def test_checkpoints_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint settles the loop in the middle of an epoch, and changes no step time."""
    keeper = ModelCheckpoint(CheckpointConfig(dirpath=str(tmp_path / "checkpoints"), every_n_steps=9))
    times, true_s = Played(monkeypatch, ExactWatch).train(tmp_path / "run", DATA_S, callbacks=[keeper])
    assert times.seconds[1:] == pytest.approx(true_s[1:], abs=1e-9)


class Pausing(Callback):
    """Takes five seconds in the middle of each epoch, and at its end."""

    plan = Every(9)

    def __init__(self, clock: ManualClock):
        super().__init__()
        self._clock = clock

    def on_boundary(self, epoch_idx: int, step_idx: int) -> None:
        self._clock.advance(5.0)

    def on_training_epoch_end(self, train_metrics: Any, epoch_idx: int) -> None:
        self._clock.advance(5.0)


@pytest.mark.parametrize("val", [-1, 9])
def test_what_callbacks_do_between_steps_is_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, val: int) -> None:
    """The row after a slow callback has the time of its steps alone, next to a validation too."""
    played = Played(monkeypatch, ExactWatch, has_spikes=False)
    times, _ = played.train(tmp_path, DATA_S, val=val, callbacks=[Pausing(played.clock)])
    assert times.seconds[1:] == pytest.approx(DATA_S, abs=STEP_S + 1e-9)


def test_steps_that_nobody_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread sees a step complete, no row is an artefact of when the loop looked: all are what steps take."""
    played = Played(monkeypatch, BlindWatch, has_spikes=False)
    times, true_s = played.train(tmp_path, DATA_S)
    learned = times.step > STEPS_PER_EPOCH + 1  # the first step that is waited for is the last of the first epoch
    assert times.seconds[learned] == pytest.approx(true_s[learned], abs=1e-9)


def test_reports_are_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has waited on the played device, and nowhere else: the clock has moved to its last end."""
    played = Played(monkeypatch, ExactWatch)
    played.train(tmp_path, 0.0)
    assert played.clock.now() == played.device.ends_s[-1]
