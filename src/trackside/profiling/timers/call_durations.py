"""How long calls took whose arrays came later, worked out from the completions that were seen.

JAX returns before a device has begun, and the calls of a loop queue up behind each other. So the time from a call to
its arrays includes what was in the queue before it. A call therefore takes the time to its own completion from its
start, or from the completion of the previous call if that is later.

Not every completion is seen. An array that was donated to the next call cannot be waited for, and watching each of many
short calls would slow them down. Calls that follow each other without a pause of the device share the time up to the
next completion that is seen; their sum is exact. If the device paused in between (a call knows that when it finds the
previous one complete), the calls before the pause count as long as watched calls take on average: in total at least
until they returned, and at most until the pause was over.
"""

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_NUM_REMEMBERED = 64  # completions; more calls than that inside of one another are not expected
_MAX_OPEN = 1024  # calls in a row of which no completion was seen
_WEIGHT = 0.125  # of the call last looked at, in the average of its series


class Waitable(Protocol):
    """An array of JAX, or something that behaves like one."""

    def block_until_ready(self) -> Any:
        """Return when the value is computed; raise if there is none to wait for."""
        ...

    def is_ready(self) -> bool:
        """Whether the value is computed; raise if there is none to wait for."""
        ...


@dataclass(slots=True)
class CallSeries:
    """The calls of one function, which take about the same time each."""

    mean_s: float | None = None
    """What they take: a moving average of those that were watched."""
    num_in_a_row: int = 0
    """How many came without a call of another function in between."""
    on_lost: Callable[[], object] | None = None
    """Called when a call left nothing to wait for."""

    def add(self, seconds: float) -> None:
        """Add a call that was watched."""
        self.mean_s = seconds if self.mean_s is None else self.mean_s + _WEIGHT * (seconds - self.mean_s)


@dataclass(slots=True)
class Call:
    """A call that has returned, whose arrays may not be computed yet."""

    start_s: float
    returned_s: float
    arrays: Sequence[Waitable]
    """What it returned; dropped as soon as it is computed."""
    record: Callable[[float, int], object]
    """Receives the seconds that a call took, and for how many calls."""
    series: CallSeries | None = None
    """The calls that it may be counted together with; None for one that is watched by itself."""
    is_after_pause: bool = False
    """Whether the previous call was complete when this one started."""
    on_seen: Callable[[], object] | None = None
    """Called when it is complete. A call with a callback is watched by itself."""


class CallDurations:
    """Works out what calls took. They are added in the order in which they returned, by any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: list[Call] = []
        """Calls that are not recorded yet, without their arrays."""
        self._are_complete = False
        """Whether the open calls are known to be complete."""
        self._completed: deque[tuple[float, float]] = deque(maxlen=_NUM_REMEMBERED)
        """When calls returned and when they were complete, both rising."""
        self.forgotten_s = -math.inf
        """Calls that had returned by then are not recorded."""

    @property
    def has_complete(self) -> bool:
        """Whether there are calls that are known to be complete, and not recorded yet."""
        return bool(self._open) and self._are_complete

    def add_seen(self, calls: Sequence[Call], completed_s: float, is_typical: bool = True) -> None:
        """Record calls, and those that are open: the last one was seen to be complete.

        Args:
            calls: The calls.
            completed_s: When the last was complete.
            is_typical: Whether they count for the average of their series. A call that is watched only because it was
                running at some moment does not: long calls are running more often.
        """
        with self._lock:
            self._close_others(calls[0], completed_s)
            self._take_in(calls)
            *before, last = self._take_runs()
            begin_s = self._begin_of(last[0])
            seconds = max(completed_s - begin_s, 0.0) / len(last)
            if last[-1].series is not None and (is_typical or len(last) > 1):
                last[-1].series.add(seconds)
            self._record_unseen(before, last[0].start_s)
            self._record([last], [begin_s], seconds * len(last))

    def add_complete(self, calls: Sequence[Call], now_s: float) -> None:
        """Add calls that are complete, at a time that was not seen. They are recorded with the next one seen."""
        with self._lock:
            self._close_others(calls[0], now_s)
            self._take_in(calls)
            self._are_complete = True
            self._limit(now_s)

    def add_lost(self, call: Call, now_s: float) -> None:
        """Add a call that left nothing to wait for. It is recorded with the next one seen."""
        with self._lock:
            self._take_in([call])
            self._are_complete = False
            self._limit(now_s)

    def close(self, until_s: float) -> None:
        """Record the open calls, which were complete by a given time."""
        with self._lock:
            self._record_unseen(self._take_runs(), until_s)

    def _take_in(self, calls: Sequence[Call]) -> None:
        for call in calls:
            call.arrays = ()
        self._open += calls

    def _close_others(self, call: Call, now_s: float) -> None:
        """Record open calls that are complete, rather than let them share the time of another function's calls."""
        if self._open and self._are_complete and self._open[-1].series is not call.series:
            self.close(now_s)

    def _limit(self, now_s: float) -> None:
        if len(self._open) >= _MAX_OPEN:
            self.close(now_s)

    def _take_runs(self) -> list[list[Call]]:
        """The open calls, in stretches without a pause of the device."""
        calls, self._open = self._open, []
        runs: list[list[Call]] = []
        for call in calls:
            if runs and not call.is_after_pause:
                runs[-1].append(call)
            else:
                runs.append([call])
        return runs

    def _record_unseen(self, runs: Sequence[list[Call]], until_s: float) -> None:
        """Record stretches, each of which was over when the next began, and the last by a given time."""
        if not runs:
            return
        begins_s = [self._begin_of(run[0]) for run in runs]
        ends_s = [*(run[0].start_s for run in runs[1:]), until_s]
        rooms_s = [max(end_s - begin_s, 0.0) for begin_s, end_s in zip(begins_s, ends_s, strict=True)]
        shortest_s = sum(max(run[-1].returned_s - begin_s, 0.0) for begin_s, run in zip(begins_s, runs, strict=True))
        num_calls = sum(len(run) for run in runs)
        series = runs[0][0].series
        total_s = sum(rooms_s) if series is None or series.mean_s is None else series.mean_s * num_calls
        total_s = min(max(total_s, shortest_s), sum(rooms_s))
        # What the earlier stretches have no room for was done in the last, so the next call began after that.
        self._record(runs, begins_s, total_s, last_s=total_s - sum(rooms_s[:-1]))

    def _begin_of(self, call: Call) -> float:
        """When a device can have begun with a call: not before the last call that had returned by then was complete."""
        for returned_s, completed_s in reversed(self._completed):
            if returned_s <= call.start_s:
                return max(call.start_s, completed_s)
        return call.start_s

    def _record(
        self, runs: Sequence[list[Call]], begins_s: Sequence[float], total_s: float, last_s: float = 0.0
    ) -> None:
        """Record calls that took `total_s` together, of which the last stretch took at least `last_s`."""
        calls = [call for run in runs for call in run]
        seconds = total_s / len(calls)
        for run, begin_s in zip(runs, begins_s, strict=True):
            spent_s = seconds * len(run)
            self._completed.append(
                (run[-1].returned_s, begin_s + (max(spent_s, last_s) if run is runs[-1] else spent_s))
            )
        counted = [call.record for call in calls if call.returned_s > self.forgotten_s]
        for record, group in itertools.groupby(counted):
            record(seconds, len(list(group)))
