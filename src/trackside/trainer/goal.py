"""How far a training goes."""

from dataclasses import dataclass
from numbers import Integral

from trackside.errors import ConfigError, DataError
from trackside.schedule import NEVER
from trackside.trainer.cursor import Cursor


@dataclass(frozen=True)
class Goal:
    """How long to train. Totals count from step 0."""

    num_epochs: int | None
    num_train_steps: int | None
    steps_per_epoch: int | None
    """None where only the loader's end tells."""
    is_stream: bool
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
            if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < 1):
                raise ConfigError(f"{name}: expected a positive whole number, got {value!r}")
        num_epochs, num_train_steps, steps_per_epoch = (
            None if value is None else int(value) for value in (num_epochs, num_train_steps, steps_per_epoch)
        )
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

    def epoch_end(self, cursor: Cursor) -> float:
        """The step at which the current epoch is over."""
        length = NEVER if self.steps_per_epoch is None else self.steps_per_epoch
        end = cursor.epoch_start_step + length
        return end if self.num_train_steps is None else min(end, self.num_train_steps)

    def why_nothing_is_left(self, cursor: Cursor) -> str:
        """Why a training that has reached its goal does not train, and how to let it."""
        if self.num_train_steps is not None:
            return (
                f"already at step {cursor.step} of {self.num_train_steps}; num_train_steps counts from the beginning: "
                f"pass {cursor.step + 1} to train one more"
            )
        of = "" if self.last_step == NEVER else f" of {self.last_step}"
        return (
            f"already at step {cursor.step}{of}; num_epochs counts from the beginning: "
            f"pass {cursor.epoch + 1} to train one more"
        )

    def is_reached(self, cursor: Cursor) -> bool:
        """Whether there is nothing left to train."""
        if self.num_train_steps is not None:
            return cursor.step >= self.num_train_steps
        assert self.num_epochs is not None
        return cursor.epoch >= self.num_epochs and not cursor.is_epoch_open
