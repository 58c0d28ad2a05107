"""Where the batches of a training come from: a loader that is opened, set to a position, and started again."""

from collections.abc import Iterable
from dataclasses import dataclass

from trackside.errors import DataError
from trackside.trainer.feed import BufferGuard, open_loader
from trackside.trainer.goal import Goal, Position


@dataclass
class BatchSource:
    """The loader of a training. What is open of it belongs to the position, which outlives the loop."""

    position: Position
    goal: Goal
    loader: Iterable
    max_inflight_steps: int
    _opened_at_step: int = -1

    def open_for_epoch(self, is_new: bool) -> None:
        """Have batches for an epoch that begins, or that goes on."""
        position = self.position
        goes_on = position.loader is self.loader and position.batches is not None
        if not goes_on or (is_new and not self.goal.loader_goes_on):
            self._open()
        if position.is_restored:
            self._place(is_new)

    def start_again(self) -> bool:
        """Start the loader again when it has run out.

        Returns:
            False if the epoch is over with it.
        """
        position = self.position
        if position.step == self._opened_at_step:
            raise DataError(
                f"train_loader: gave no batch at step {position.step + 1} in epoch {position.epoch}. An iterator can "
                "be gone through only once: pass a loader that starts anew each time, or fewer epochs"
            )
        if not self.goal.loader_goes_on:
            return False
        self._open()
        return True

    def _open(self) -> None:
        position = self.position
        position.loader = self.loader
        position.batches = open_loader(self.loader, "train_loader")
        self._opened_at_step = position.step
        position.guard = BufferGuard(self.loader, self.max_inflight_steps)

    def _place(self, is_new_epoch: bool) -> None:
        """Set a loader to where a restored training stands: by its own position, or by passing over batches."""
        position = self.position
        position.is_restored = False
        goes_on = self.goal.loader_goes_on or position.batches is self.loader
        set_state = getattr(position.batches, "set_state", None)
        if position.loader_position is not None and callable(set_state):
            if goes_on or not is_new_epoch:
                set_state(position.loader_position)
                self._opened_at_step = -1
            return
        num_passed = position.step if goes_on else position.step - position.epoch_start_step
        self._opened_at_step = -1 if num_passed else self._opened_at_step
        for _ in range(num_passed):
            assert position.batches is not None
            if next(position.batches, None) is None:
                self._open()
                next(position.batches)
