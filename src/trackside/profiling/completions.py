"""How long calls took whose arrays came later, worked out from the completions that were seen.

JAX returns before a device has begun. The calls of a loop queue up behind each other, so that the time from a call to
its arrays holds what was in the queue before. A call is therefore said to take the time from its start, or from the
completion of what was called before it if that is later, to its own completion.

Not each completion is seen. An array that was given away to the next call (donated) cannot be waited for, and looking
at each of many short calls would slow them down. Calls that follow each other without a pause of the device share the
time up to the next completion that is seen: together it is exact. Where the device paused in between, which a call
knows that found the one before it complete, the calls before the pause count as long as those last seen, and never
longer than until the pause was over.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_NUM_REMEMBERED = 64  # completions; more calls than that inside of one another are not expected
_MAX_OPEN = 1024  # calls in a row of which no completion was seen


class Waitable(Protocol):
    """An array of JAX, or what behaves like one."""

    def block_until_ready(self) -> Any:
        """Return when the value is there; raise if there is none to wait for."""
        ...

    def is_ready(self) -> bool:
        """Whether the value is there; raise if there is none to wait for."""
        ...


@dataclass(slots=True)
class CallSeries:
    """The calls of one function, which take about the same time each."""

    typical_s: float | None = None
    """What those last seen took."""
    num_in_a_row: int = 0
    """So many came without a call of anything else between them."""
    on_lost: Callable[[], object] | None = None
    """Called when nothing was left to wait for of a call."""


@dataclass(slots=True)
class Call:
    """A call that has returned, whose arrays may not be there yet."""

    start_s: float
    returned_s: float
    arrays: Sequence[Waitable]
    """What it returned; forgotten as soon as it is there."""
    record: Callable[[float, int], object]
    """Gets the seconds that a call took, and for how many calls."""
    series: CallSeries | None = None
    """Whose calls may be counted together with it; None for one that is looked at by itself."""
    is_after_pause: bool = False
    """Whether the call before was complete when this one started."""
    on_seen: Callable[[], object] | None = None
    """Called when it is over. It is then looked at by itself."""


class CompletionAccount:
    """Works out what calls took. Calls are told in the order in which they returned."""

    def __init__(self) -> None:
        self._open: list[Call] = []
        """Calls that are not recorded yet, without their arrays."""
        self._completed: deque[tuple[float, float]] = deque(maxlen=_NUM_REMEMBERED)
        """When calls returned and when they were complete, both rising."""
        self.forgotten_s = -math.inf
        """Calls that had returned by then are not recorded."""

    def add(self, calls: Sequence[Call]) -> None:
        """Take in calls that are recorded later."""
        for call in calls:
            call.arrays = ()
        self._open += calls

    @property
    def is_full(self) -> bool:
        """Whether more calls are open than should be."""
        return len(self._open) >= _MAX_OPEN

    def has_other_than(self, series: CallSeries | None) -> bool:
        """Whether a call is open that is not of a series."""
        return bool(self._open) and self._open[-1].series is not series

    def settle(self, completed_s: float) -> None:
        """Record the open calls, of which the last was seen to be complete at a time."""
        if not self._open:
            return
        *before, last = self._take_runs()
        begin_s = self._begin_of(last[0])
        seconds = max(completed_s - begin_s, 0.0) / len(last)
        if last[-1].series is not None:
            last[-1].series.typical_s = seconds
        self._record_unseen(before, last[0].start_s)
        self._record(last, begin_s, seconds)

    def settle_unseen(self, until_s: float) -> None:
        """Record the open calls, which are complete since a time that nobody saw; `until_s` at the latest."""
        self._record_unseen(self._take_runs(), until_s)

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
        """Record stretches by what those last seen took; each was over when the next began, the last at a time."""
        for index, run in enumerate(runs):
            end_s = runs[index + 1][0].start_s if index + 1 < len(runs) else until_s
            begin_s = self._begin_of(run[0])
            seconds = max(end_s - begin_s, 0.0) / len(run)
            if run[0].series is not None and run[0].series.typical_s is not None:
                seconds = min(seconds, run[0].series.typical_s)
            self._record(run, begin_s, seconds)

    def _begin_of(self, call: Call) -> float:
        """When a device can have begun with a call. Calls inside of another are not before it."""
        for returned_s, completed_s in reversed(self._completed):
            if returned_s <= call.start_s:
                return max(call.start_s, completed_s)
        return call.start_s

    def _record(self, run: Sequence[Call], begin_s: float, seconds: float) -> None:
        """Record calls that took so many seconds each, one after the other."""
        self._completed.append((run[-1].returned_s, begin_s + seconds * len(run)))
        counted = [call for call in run if call.returned_s > self.forgotten_s]
        if counted and all(call.record == counted[0].record for call in counted):
            counted[0].record(seconds, len(counted))
        else:
            for call in counted:
                call.record(seconds, 1)
