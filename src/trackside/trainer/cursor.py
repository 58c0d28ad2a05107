"""Where a training is, in steps and epochs."""

from dataclasses import dataclass
from typing import Any


@dataclass
class Cursor:
    """The last step and the current epoch, both counted from 1; 0 before the first."""

    step: int = 0
    epoch: int = 0
    epoch_start_step: int = 0
    """The last step before the current epoch."""
    is_epoch_open: bool = False
    """Whether the current epoch is not over, so that a later call continues it."""
    ended_step: int = -1
    """The last step after which an epoch was reported as over, cut ones included."""

    def begin_epoch(self) -> bool:
        """Begin the next epoch, unless one is open.

        Returns:
            Whether a new one has begun.
        """
        if self.is_epoch_open:
            return False
        self.epoch += 1
        self.epoch_start_step = self.step
        self.is_epoch_open = True
        return True

    def place_in_epochs(self, steps_per_epoch: int | None) -> None:
        """Work out the epoch of a restored state, which knows its step only."""
        if self.epoch == 0 and self.step > 0 and steps_per_epoch:
            done, steps_into_epoch = divmod(self.step, steps_per_epoch)
            self.is_epoch_open = steps_into_epoch > 0
            self.epoch = done + self.is_epoch_open
            self.epoch_start_step = self.step - steps_into_epoch

    def to_record(self) -> dict[str, Any]:
        """What is saved of it; the step is saved with the state."""
        return {
            "epoch": self.epoch,
            "epoch_start_step": self.epoch_start_step,
            "is_epoch_open": self.is_epoch_open,
            "ended_step": self.ended_step,
        }

    def restore(self, record: dict[str, Any], step: int) -> None:
        """Be where a saved training was."""
        self.step = step
        self.epoch = record["epoch"]
        self.epoch_start_step = record["epoch_start_step"]
        self.is_epoch_open = record["is_epoch_open"]
        self.ended_step = record.get("ended_step", -1)
