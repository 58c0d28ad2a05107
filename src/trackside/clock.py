"""Time as a dependency: what measures takes a `Clock`, so that tests inject their own and never sleep."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where durations and timestamps come from."""

    def now(self) -> float:
        """Seconds on a monotonic clock; only differences mean anything."""
        ...

    def timestamp(self) -> float:
        """Seconds since the epoch, for people and for joining files of several machines."""
        ...


class SystemClock:
    """The machine's clocks."""

    now = staticmethod(time.perf_counter)
    timestamp = staticmethod(time.time)


class ManualClock:
    """A clock that moves only when told to.

    Args:
        start: What both readings begin at, in seconds.
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
        """Let `seconds` pass."""
        self._seconds += seconds


SYSTEM_CLOCK = SystemClock()
