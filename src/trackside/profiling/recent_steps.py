"""How long the last steps took, to find out whether one was unusual."""

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from trackside.profiling.call_record import CallRecord


@dataclass(frozen=True)
class SlowStep:
    """A step that took much longer than the others."""

    step: int
    seconds: float
    median_s: float
    """What the steps before it took."""


class RecentStepTimes:
    """A bounded record of step durations: from the completion of one step to that of the next.

    Anything but training (a validation, a boundary at which a callback acted) breaks the sequence, and steps that were
    disturbed (by a compile or a capture) do not count. Of a call that makes several steps, only the time of all is
    known: it is one entry, with the time that a step takes on average.

    Args:
        max_steps: How many steps are remembered.
    """

    def __init__(self, max_steps: int = 256):
        self._durations: deque[tuple[int, float, int]] = deque(maxlen=max_steps)
        self.last_s: float | None = None
        """When the last step completed; None where something else came since."""

    def add_calls(self, calls: Iterable[CallRecord], is_disturbed: bool) -> None:
        """Add the steps of calls that have completed.

        Args:
            calls: The calls, in their order. Those that make no step are left out.
            is_disturbed: Whether all of them are; else each says so itself.
        """
        append, last_s = self._durations.append, self.last_s
        for call in calls:
            num_steps, completed_s = call.num_steps, call.completed_s
            if num_steps:
                if last_s is not None and not (is_disturbed or call.is_disturbed):
                    append((call.first_step + num_steps - 1, (completed_s - last_s) / num_steps, num_steps))
                last_s = completed_s
        self.last_s = last_s

    def break_off(self) -> None:
        """The time to the next completion is not that of a step."""
        self.last_s = None

    def __len__(self) -> int:
        return len(self._durations)

    def median_s(self) -> float | None:
        """The median duration; None before there is any."""
        return statistics.median(seconds for _, seconds, _ in self._durations) if self._durations else None

    def find_slow(self, after_step: int, factor: float, min_steps: int = 20) -> SlowStep | None:
        """The slowest of the latest steps, if it took more than `factor` times the median of those before.

        Args:
            after_step: Steps up to this one were looked at before; they are what the later ones are compared with.
            factor: How much slower is unusual.
            min_steps: With fewer to compare with, nothing is unusual.
        """
        before = [seconds for step, seconds, _ in self._durations if step <= after_step]
        num_before = sum(num_steps for step, _, num_steps in self._durations if step <= after_step)
        latest = [(seconds, step, num_steps) for step, seconds, num_steps in self._durations if step > after_step]
        if num_before < min_steps or not latest:
            return None
        (seconds, step, num_steps), median_s = max(latest), statistics.median(before)
        # Of a call of several, one was slow, and the others took what they take.
        slowest_s = num_steps * seconds - (num_steps - 1) * median_s
        return SlowStep(step, slowest_s, median_s) if seconds > factor * median_s else None
