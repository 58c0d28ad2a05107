"""What asks for a capture beside a plan of steps: the clock, a file, a signal, a slow step.

None of them is looked at in the hot loop. They are asked about once a second, at a boundary that costs some
microseconds and settles nothing unless a capture is due.
"""

import pathlib
import signal
import threading
from collections import deque
from types import FrameType
from typing import Any

from trackside.clock import Clock
from trackside.profiling.recent_steps import RecentStepTimes

LOOK_EVERY_S = 1.0
MAX_STEPS_BETWEEN_LOOKS = 4096


class LookAround:
    """The next step at which to look around, so that it happens about once a second, however long steps take.

    Args:
        clock: The clock.
    """

    def __init__(self, clock: Clock):
        self._clock = clock
        self._looked_step = 0
        self._looked_s = clock.now()
        self._next_step = 0

    def next_step(self, step: int) -> int:
        """The next step to look around at, after `step`."""
        if step >= self._next_step:
            self._next_step = step + self._steps_per_look(step)
            self._looked_step, self._looked_s = step, self._clock.now()
        return self._next_step

    def _steps_per_look(self, step: int) -> int:
        num_steps, seconds = step - self._looked_step, self._clock.now() - self._looked_s
        if num_steps <= 0 or seconds <= 0:
            return 1
        # At most doubled, since the steps before may have been those of a faster time.
        planned = min(LOOK_EVERY_S * num_steps / seconds, 2 * num_steps, MAX_STEPS_BETWEEN_LOOKS)
        return max(1, round(planned))


class OnDemand:
    """Asked for from outside: by touching a file, which is removed, or by SIGUSR2.

    Args:
        file: The file; None for signals only.
    """

    def __init__(self, file: pathlib.Path | None):
        self.file = file
        self._was_signalled = False
        self._previous: Any = None
        self._is_listening = False

    def listen(self) -> None:
        """Catch SIGUSR2, which only the main thread can. Whoever caught it before is called as well."""
        if self._is_listening or threading.current_thread() is not threading.main_thread():
            return
        self._previous = signal.signal(signal.SIGUSR2, self._on_signal)
        self._is_listening = True

    def close(self) -> None:
        """Give the signal back."""
        if self._is_listening and signal.getsignal(signal.SIGUSR2) == self._on_signal:
            signal.signal(signal.SIGUSR2, self._previous)
        self._is_listening = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._was_signalled = True
        if callable(self._previous):
            self._previous(number, frame)

    def ask(self) -> str:
        """What asks for a capture; empty if nothing does. A request is answered once."""
        if self._was_signalled:
            self._was_signalled = False
            return "SIGUSR2"
        if self.file is not None and self.file.exists():
            try:
                self.file.unlink()
            except OSError:
                return ""  # a file that cannot be removed would ask forever
            return f"{self.file.name} was touched"
        return ""


class OnSlowStep:
    """Asks when a step took much longer than those before it, a few times per hour at most.

    Args:
        factor: How many times the median is slow; below 0 for never.
        max_per_hour: How often it may ask.
        clock: The clock.
    """

    def __init__(self, factor: float, max_per_hour: int, clock: Clock):
        self._factor = factor
        self._clock = clock
        self._asked_s: deque[float] = deque(maxlen=max_per_hour)
        self._looked_step = 0

    def ask(self, step: int, times: RecentStepTimes) -> str:
        """What was slow; empty if nothing was."""
        if self._factor < 0 or not self._asked_s.maxlen:
            return ""
        slow = times.find_slow(self._looked_step, self._factor)
        self._looked_step = step
        now_s = self._clock.now()
        is_full = len(self._asked_s) == self._asked_s.maxlen
        if slow is None or (is_full and now_s - self._asked_s[0] < 3600):
            return ""
        self._asked_s.append(now_s)
        return f"a step near {slow.step} took {1e3 * slow.seconds:.1f} ms, the median is {1e3 * slow.median_s:.1f} ms"
