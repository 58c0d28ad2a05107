"""How long training steps take, from one log row to the next, without what is no training step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class RowStepTime:
    """Seconds per step since the last row.

    Attributes:
        last_step: The step of the last row.
        last_step_time: When that was; None before any.
        awaits_epoch: Whether the next epoch of training is to start it.
    """

    def __init__(self) -> None:
        self.last_step = 0
        self.last_step_time: float | None = None
        self._excluded_s = 0.0
        self._excluded_steps = 0
        self._paused_at: tuple[int, float] | None = None
        self.awaits_epoch = True

    def start_training(self, step: int, now_s: float) -> None:
        """Start from a step. The first epoch starts again: what comes before it is no training step."""
        self.start(step, now_s)
        self.awaits_epoch = True

    def start(self, step: int, now_s: float) -> None:
        """Start from a step, with nothing to leave out."""
        self.last_step, self.last_step_time, self._excluded_s, self._excluded_steps = step, now_s, 0.0, 0
        self._paused_at = None
        self.awaits_epoch = False

    def lap(self, step: int, now_s: float) -> float | None:
        """A row is logged: the seconds per step since the last one; None where there is no step to tell of."""
        if self._paused_at is not None:
            self._exclude_pause(step, now_s)
        num_steps, last_s = step - self.last_step, self.last_step_time
        if num_steps < 1:
            num_steps = 1
        if self._excluded_s or self._excluded_steps:
            num_steps -= self._excluded_steps
            last_s = None if last_s is None else last_s + self._excluded_s
            self._excluded_s, self._excluded_steps = 0.0, 0
        self.last_step, self.last_step_time = step, now_s
        if last_s is None or num_steps <= 0:
            return None
        return (now_s - last_s) / num_steps if now_s > last_s else 0.0

    def laps(self, steps: Sequence[int], ended_s: Sequence[float]) -> list[float] | None:
        """Several rows are logged, of steps that follow each other: what `lap` says of each.

        Returns:
            None, and nothing was done, where there is something to leave out or to say about only some of them.
        """
        last_s = self.last_step_time
        if last_s is None or self._paused_at is not None or self._excluded_s or self._excluded_steps:
            return None
        if steps[0] <= self.last_step:
            return None
        before, began_s = [self.last_step, *steps[:-1]], [last_s, *ended_s[:-1]]
        self.last_step, self.last_step_time = steps[-1], ended_s[-1]
        seconds = [end - begin if end > begin else 0.0 for end, begin in zip(ended_s, began_s, strict=True)]
        if steps[-1] - before[0] == len(steps):  # each is a step after the one before
            return seconds
        return [each / (step - last) for each, step, last in zip(seconds, steps, before, strict=True)]

    def exclude(self, seconds: float) -> None:
        """Leave out time that just passed. During a pause all of it is left out anyway."""
        if self._paused_at is None:
            self._excluded_s += seconds

    @contextmanager
    def left_out(self, now: Callable[[], float]) -> Iterator[None]:
        """Leave out the time of a block, once also where some of it is left out inside.

        Args:
            now: What the clock shows.
        """
        began_s, excluded_s = now(), self._excluded_s
        try:
            yield
        finally:
            inside_s = max(self._excluded_s - excluded_s, 0.0)
            self.exclude(max(now() - began_s - inside_s, 0.0))

    def pause(self, step: int, now_s: float) -> None:
        """Leave out the steps after `step`, and their time."""
        if self._paused_at is None:
            self._paused_at = step, now_s

    def resume(self, step: int, now_s: float) -> None:
        """Count the steps after `step` again."""
        if self._paused_at is not None:
            self._exclude_pause(step, now_s)
            self._paused_at = None

    def _exclude_pause(self, step: int, now_s: float) -> None:
        assert self._paused_at is not None
        since_step, since_s = self._paused_at
        self._excluded_steps += step - since_step
        self._excluded_s += now_s - since_s
        self._paused_at = step, now_s
