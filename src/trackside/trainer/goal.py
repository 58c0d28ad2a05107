"""Where a training stands and how far it goes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trackside.errors import ConfigError, DataError
from trackside.metrics.row import MetricTotals
from trackside.schedule import NEVER
from trackside.trainer.feed import BufferGuard
from trackside.trainer.legs import TrainingTime
from trackside.trainer.state import Carry


@dataclass
class Position:
    """Where a training stands. Outlives the loop, so that a later call goes on from here."""

    carry: Carry
    step: int = 0
    epoch: int = 0
    epoch_start_step: int = 0
    is_epoch_open: bool = False
    vector: Any = None
    """Metrics since the last log row or the last settling, on the device."""
    interval: MetricTotals | None = None
    """Metrics since the last log row that were settled before it was due."""
    epoch_totals: MetricTotals | None = None
    """Metrics of the epoch so far."""
    best: dict[str, dict[str, float]] = field(default_factory=dict)
    """`train` and `val` metrics of the validation with the lowest loss so far."""
    loader: Any = None
    batches: Iterator | None = None
    guard: BufferGuard | None = None
    loader_position: Any = None
    """Where a restored training has to set the loader before it goes on, if the loader can tell."""
    time: TrainingTime = field(default_factory=TrainingTime)
    """How long the training has taken so far."""
    is_restored: bool = False
    """Whether the loader is still at its start while the training is not."""

    def place_in_epochs(self, steps_per_epoch: int | None) -> None:
        """Work out the epoch of a restored state, which knows its step only."""
        if self.epoch == 0 and self.step > 0 and steps_per_epoch:
            done, steps_into_epoch = divmod(self.step, steps_per_epoch)
            self.is_epoch_open = steps_into_epoch > 0
            self.epoch = done + self.is_epoch_open
            self.epoch_start_step = self.step - steps_into_epoch


@dataclass(frozen=True)
class Goal:
    """How long to train. Totals count from step 0."""

    num_epochs: int | None
    num_train_steps: int | None
    steps_per_epoch: int | None
    """None where only the loader's end tells."""
    loader_goes_on: bool
    """Whether an epoch is `steps_per_epoch` steps of a stream, and not one pass over the loader."""

    @classmethod
    def of(
        cls,
        num_epochs: int | None,
        num_train_steps: int | None,
        steps_per_epoch: int | None,
        loader_length: int | None,
    ) -> "Goal":
        """The goal as the user states it, checked.

        Args:
            num_epochs: Number of epochs; either this or `num_train_steps`.
            num_train_steps: Number of steps.
            steps_per_epoch: Steps per epoch, if it shall not be one pass over the loader.
            loader_length: Batches of the train loader, if it knows.
        """
        if (num_epochs is None) == (num_train_steps is None):
            raise ConfigError(
                f"num_epochs={num_epochs}, num_train_steps={num_train_steps}: give one of the two, and only one"
            )
        named = {"num_epochs": num_epochs, "num_train_steps": num_train_steps, "steps_per_epoch": steps_per_epoch}
        for name, value in named.items():
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}: expected a positive whole number, got {value!r}")
        if loader_length == 0:
            raise DataError("train_loader: it is empty (its length is 0)")
        return cls(num_epochs, num_train_steps, steps_per_epoch or loader_length, steps_per_epoch is not None)

    @property
    def last_step(self) -> float:
        """The step after which training is over, as far as it can be known beforehand."""
        if self.num_train_steps is not None:
            return self.num_train_steps
        if self.num_epochs is not None and self.steps_per_epoch is not None:
            return self.num_epochs * self.steps_per_epoch
        return NEVER

    def epoch_end(self, position: Position) -> float:
        """The step at which the current epoch is over."""
        length = NEVER if self.steps_per_epoch is None else self.steps_per_epoch
        end = position.epoch_start_step + length
        return end if self.num_train_steps is None else min(end, self.num_train_steps)

    def is_reached(self, position: Position) -> bool:
        """Whether there is nothing left to train."""
        if self.num_train_steps is not None:
            return position.step >= self.num_train_steps
        assert self.num_epochs is not None
        return position.epoch >= self.num_epochs and not position.is_epoch_open
