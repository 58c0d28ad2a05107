"""Time as a dependency: code that measures takes a `Clock`, so that tests can inject their own and never sleep."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where durations and timestamps come from."""

    def now(self) -> float:
        """Seconds on a monotonic clock. Only differences are meaningful."""
        ...

    def timestamp(self) -> float:
        """Seconds since 1970, for people and for combining files of several machines."""
        ...


class SystemClock:
    """The machine's clocks."""

    now = staticmethod(time.perf_counter)
    timestamp = staticmethod(time.time)


class ManualClock:
    """A clock that moves only when `advance` is called.

    Args:
        start: The first reading, in seconds.
    """

    def __init__(self, start: float = 0.0):
        self._seconds = start

    def now(self) -> float:
        """The seconds so far."""
        return self._seconds

    def timestamp(self) -> float:
        """The seconds so far."""
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._seconds += seconds


SYSTEM_CLOCK = SystemClock()
