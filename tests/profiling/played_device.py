"""A device on a clock that only waiting moves: how long each call takes on it is given."""

from typing import Any

import numpy as np

from trackside.clock import ManualClock
from trackside.profiling.call_record import CallRecord
from trackside.profiling.completion_watch import CompletionWatch


class PlayedReport:
    """What a call on the device returns: ready at a time that is known from the start, and waited for on the clock."""

    def __init__(self, clock: ManualClock, done_s: float, value: Any = None):
        self.done_s, self.value = done_s, value
        self._clock = clock

    def is_ready(self) -> bool:
        return self._clock.now() >= self.done_s

    def block_until_ready(self) -> "PlayedReport":
        self.__array__()
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if not self.is_ready():
            self._clock.advance(self.done_s - self._clock.now())
        return np.asarray(self.value, dtype)


class PlayedDevice:
    """Does one call after the other."""

    def __init__(self, clock: ManualClock):
        self.begins_s: list[float] = []
        self.ends_s: list[float] = []
        self._clock = clock

    def call(self, seconds: float, value: Any = None) -> PlayedReport:
        """Begin a call, or queue it."""
        self.begins_s.append(max(self._clock.now(), self.ends_s[-1] if self.ends_s else 0.0))
        self.ends_s.append(self.begins_s[-1] + seconds)
        return PlayedReport(self._clock, self.ends_s[-1], value)


class ExactWatch(CompletionWatch):
    """Sees every call complete that it is given."""

    def watch(self, call: CallRecord) -> None:
        call.seen_s = call.report.done_s


class BlindWatch(CompletionWatch):
    """Sees nothing, as a thread that gets no chance to run."""

    def watch(self, call: CallRecord) -> None:
        pass
