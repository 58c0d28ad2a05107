"""How long training steps take, from one log row to the next, without what is no training step."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

MAX_SPANS = 4096
"""More are forgotten: a loop that logs no rows must not fill the memory."""


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
        self._pauses: deque[_Pause] = deque(maxlen=MAX_SPANS)
        """Pauses that a row may still have steps of; the last may not be over."""
        self._spans: deque[tuple[float, float]] = deque(maxlen=MAX_SPANS)
        """From when until when something else came, for rows that are logged later than that."""
        self.awaits_epoch = True

    def start_training(self, step: int, now_s: float) -> None:
        """Start from a step. The first epoch starts again: what comes before it is no training step."""
        self.start(step, now_s)
        self.awaits_epoch = True

    def start(self, step: int, now_s: float) -> None:
        """Start from a step, with nothing to leave out."""
        self.last_step, self.last_step_time, self._excluded_s = step, now_s, 0.0
        self._pauses.clear()
        self._spans.clear()
        self.awaits_epoch = False

    def lap(self, step: int, now_s: float) -> float | None:
        """A row is logged: the seconds per step since the last one; None where there is no step to tell of."""
        num_steps, last_s = max(step - self.last_step, 1), self.last_step_time
        if self._pauses:
            num_steps -= self._leave_out_pauses(step, now_s)
        while self._spans and self._spans[0][1] <= now_s:
            began_s, until_s = self._spans.popleft()
            self._excluded_s += max(until_s - (began_s if last_s is None else max(began_s, last_s)), 0.0)
        if self._excluded_s:
            last_s = None if last_s is None else last_s + self._excluded_s
            self._excluded_s = 0.0
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
        if last_s is None or self._pauses or self._excluded_s:
            return None
        if steps[0] <= self.last_step or (self._spans and self._spans[0][1] <= ended_s[-1]):
            return None
        before, began_s = [self.last_step, *steps[:-1]], [last_s, *ended_s[:-1]]
        self.last_step, self.last_step_time = steps[-1], ended_s[-1]
        seconds = [end - begin if end > begin else 0.0 for end, begin in zip(ended_s, began_s, strict=True)]
        if steps[-1] - before[0] == len(steps):  # each is a step after the one before
            return seconds
        return [each / (step - last) for each, step, last in zip(seconds, steps, before, strict=True)]

    def exclude(self, seconds: float) -> None:
        """Leave out time that just passed. During a pause all of it is left out anyway."""
        if not self._is_paused:
            self._excluded_s += seconds

    def exclude_span(self, began_s: float, until_s: float) -> None:
        """Leave out a time from the row that it belongs to, though rows of steps before it may not be logged yet."""
        if not self._is_paused:
            self._spans.append((began_s, until_s))

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

    @property
    def _is_paused(self) -> bool:
        return bool(self._pauses) and self._pauses[-1].until_s == math.inf

    def pause(self, step: int, now_s: float) -> None:
        """Leave out the steps after `step`, and their time."""
        if not self._is_paused:
            self._pauses.append(_Pause(step, now_s))

    def resume(self, step: int, now_s: float) -> None:
        """Count the steps after `step` again."""
        if self._is_paused:
            self._pauses.append(replace(self._pauses.pop(), until_step=step, until_s=now_s))

    def _leave_out_pauses(self, step: int, now_s: float) -> int:
        """Leave out the time that a row has of pauses; how many of its steps are theirs.

        A row may be logged when steps after it are paused already, or count again.
        """
        num_steps, since_s = 0, -math.inf if self.last_step_time is None else self.last_step_time
        for pause in list(self._pauses):
            inside = min(step, pause.until_step) - max(self.last_step, pause.step)
            if inside > 0:
                num_steps += int(inside)
                self._excluded_s += max(min(now_s, pause.until_s) - max(since_s, pause.since_s), 0.0)
            if pause.until_step <= step:
                self._pauses.remove(pause)
        return num_steps


@dataclass(frozen=True)
class _Pause:
    """Steps that do not count: those after one, up to another."""

    step: int
    since_s: float
    until_step: float = math.inf
    until_s: float = math.inf
