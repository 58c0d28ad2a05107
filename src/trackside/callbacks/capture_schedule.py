"""When captures are planned: a window of steps, or periodically by minutes.

A capture starts at the end of a step and holds those that follow.
"""

from typing import Any, Protocol

from trackside.clock import Clock
from trackside.schedule import NEVER


class CaptureSchedule(Protocol):
    """Knows when a capture is to start, and how many steps it shall hold."""

    uses_clock: bool
    """Whether more than steps decide, so that it has to be asked now and then."""
    goes_on_after_a_break: bool
    """Whether a capture that validation has ended early continues after it."""

    def begin(self, step: int) -> None:
        """A training begins after `step`: at 0, or where it is resumed."""
        ...

    def next_start(self, step: int) -> float:
        """The next step after `step` at whose end a capture is planned to start, as far as steps tell."""
        ...

    def ask(self, step: int) -> str:
        """Why a capture is to start at the end of `step`; empty if it is not."""
        ...

    def num_steps(self, step: int) -> int:
        """How many steps a capture that starts at the end of `step` shall hold."""
        ...

    def ended(self, step: int) -> None:
        """A capture has ended at the end of `step`."""
        ...

    def missed(self, last_step: int) -> str:
        """Which planned capture a training that ended after `last_step` never came to; empty if none."""
        ...

    def reset(self) -> None:
        """Forget which captures were taken."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What has to survive a restart."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        ...


class StepWindow:
    """Once, the steps from `start_step` up to and without `end_step`. A window from 0 counts from 0, and holds as many.

    A training that is resumed beyond the window and has not captured it yet captures as many steps, as many steps after
    it has begun.
    """

    uses_clock = False
    goes_on_after_a_break = True

    def __init__(self, start_step: int, end_step: int):
        first = max(start_step, 1)
        self._planned = first, first + end_step - start_step - 1
        self._first, self._last = self._planned
        self._is_done = False

    def reset(self) -> None:
        """Plan the window again."""
        self._first, self._last = self._planned
        self._is_done = False

    def begin(self, step: int) -> None:
        """Move the window if it is in the past."""
        if step >= self._last and not self._is_done:
            self._first, self._last = self._first + step, self._last + step

    def next_start(self, step: int) -> float:
        """The end of the step before the window."""
        return self._first - 1 if step < self._first - 1 and not self._is_done else NEVER

    def ask(self, step: int) -> str:
        """Whether the next step is in the window."""
        is_inside = self._first - 1 <= step < self._last
        return f"steps {self._first} to {self._last}" if is_inside and not self._is_done else ""

    def num_steps(self, step: int) -> int:
        """What is left of the window; all of it for a capture outside."""
        is_inside = self._first - 1 <= step < self._last
        return self._last - step if is_inside else self._last - self._first + 1

    def ended(self, step: int) -> None:
        """The window is done once its last step is."""
        self._is_done = self._is_done or step >= self._last

    def missed(self, last_step: int) -> str:
        """The window, if it begins behind the last step."""
        return f"steps {self._first} to {self._last}" if last_step < self._first and not self._is_done else ""

    def state_dict(self) -> dict[str, Any]:
        """Whether the window was captured."""
        return {"is_done": self._is_done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self._is_done = bool(state["is_done"])


class Periodic:
    """`num_steps` steps after the end of `first_step`, and again every N minutes.

    A training that is resumed beyond the first step and has not captured yet does so as many steps after it has begun.
    """

    uses_clock = True
    goes_on_after_a_break = False

    def __init__(self, first_step: int, num_steps: int, every_n_minutes: float, clock: Clock):
        self._planned = self._first = first_step
        self._num_steps = num_steps
        self._minutes = every_n_minutes
        self._clock = clock
        self._num_captures = 0
        self.uses_clock = every_n_minutes >= 0
        self.last_time: float | None = None
        """When the last capture ended, or the training began."""

    def reset(self) -> None:
        """Plan the first capture again."""
        self._first, self._num_captures = self._planned, 0

    def begin(self, step: int) -> None:
        """Start counting the minutes."""
        self.last_time = self._clock.now()
        if step > self._first and self._num_captures == 0:
            self._first += step

    def next_start(self, step: int) -> float:
        """The first step, as long as nothing was captured."""
        return self._first if step < self._first and self._num_captures == 0 else NEVER

    def ask(self, step: int) -> str:
        """Whether the first step or the clock says so."""
        if self._num_captures == 0:
            return f"profile_first_step={self._first}" if step >= self._first else ""
        if self._minutes < 0 or self.last_time is None or self._clock.now() - self.last_time < 60 * self._minutes:
            return ""
        return f"profile_every_n_minutes={self._minutes:g}"

    def num_steps(self, step: int) -> int:
        """The same each time."""
        return self._num_steps

    def ended(self, step: int) -> None:
        """Start counting the minutes again."""
        self._num_captures += 1
        self.last_time = self._clock.now()

    def missed(self, last_step: int) -> str:
        """The first capture, if there was none."""
        return f"profile_first_step={self._first}" if last_step <= self._first and not self._num_captures else ""

    def state_dict(self) -> dict[str, Any]:
        """How many captures there were."""
        return {"num_captures": self._num_captures}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self._num_captures = int(state["num_captures"])
