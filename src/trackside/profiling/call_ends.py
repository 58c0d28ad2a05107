"""When the calls of a loop completed on the device, without waiting for each.

A loop waits for a call only if too many are in flight; then it sees the moment at which one completes. A loop whose
device waits for data never does: it learns at its next call, or the one after that, what has completed some time ago.
So a thread watches such calls: all of them where a step is long enough to make that cheap, one now and then where it is
not, or where the device always has more to do. Of the rest only limits are known: a call does not complete before it
was made nor before the call in front of it, and not after it was found complete. Within these limits it took as long as
such calls take.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, pairwise

import numpy as np

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.profiling.array_state import is_ready
from trackside.profiling.call_record import CallRecord
from trackside.profiling.completion_watch import CompletionWatch
from trackside.profiling.wake_up import Waiter

WATCH_ALL_FROM_S = 1e-3
"""Calls this far apart are all watched: that takes a few microseconds of each."""
CHEAP_FROM_S = 5e-3
"""That takes next to nothing of calls this far apart; of shorter ones up to a twentieth, where all cores are busy."""
MIN_AHEAD_CALLS = 1000
"""A loop that has not paused for as many calls runs ahead of its device, which always has more to do."""
MIN_PAUSE_S = 2e-4
SAMPLE_EVERY_S = 0.1
"""How far apart the watched ones are otherwise."""
_MAX_DURATIONS = 32
_MIN_DURATIONS = 4
"""With fewer, it is not known how much they vary."""
_MAX_LOOKED_AT = 64
"""A loop that may have more calls under way than this has no limit."""
_NEVER = math.inf


class CallEnds:
    """Finds out when each call of a loop completed.

    Args:
        max_inflight: How many calls may be under way; see the attribute.
        clock: Where times come from.
        watch: Who sees calls complete that the loop does not wait for; a thread of its own if left out.

    Attributes:
        max_inflight: How many calls may be under way. When it gets smaller, no more than that may be.
        next_watch_s: From then on, the next call that the loop did not have to wait for is worth watching.
        latest: Gives the last call of a loop that never waits for calls by itself. While its device always has more to
            do, the thread looks for that call now and then, and the loop does not have to wake it up.
    """

    def __init__(self, max_inflight: int = 2, clock: Clock = SYSTEM_CLOCK, watch: CompletionWatch | None = None):
        self.next_watch_s = 0.0
        self.max_inflight = max_inflight
        self.latest: Callable[[], CallRecord | None] | None = None
        self._looks_for_latest = False
        self._num_ahead = 0
        self._now = clock.now
        self._watch = CompletionWatch(clock) if watch is None else watch
        self._waiter = Waiter(clock)
        self._durations: deque[float] = deque(maxlen=_MAX_DURATIONS)
        self._bounds: deque[float] = deque(maxlen=_MAX_DURATIONS)
        self._num_durations = 0
        self._typical_s: float | None = None
        self._spread_s = _NEVER
        self._is_done_in_call = False
        self._is_long = True
        self._takes_long = False
        self._last_s = -_NEVER
        self._is_last_seen = False
        self._last_seen_s = _NEVER
        self._num_unseen = 0

    @property
    def last_s(self) -> float:
        """When the call before the next one to be concluded has completed."""
        return self._last_s

    @property
    def is_known(self) -> bool:
        """Whether it is known how long a call takes on the device."""
        return self._typical_s is not None

    def watch(self, call: CallRecord) -> None:
        """Find out when a call that was just made completes: it has done so, or a thread waits for it."""
        if not self._is_long:
            self.next_watch_s = call.dispatched_s + SAMPLE_EVERY_S
        self._is_done_in_call = is_ready(call.report)  # as short steps are on a CPU
        if self._is_done_in_call:
            call.seen_s, call.uncertainty_s = call.dispatched_s, call.dispatched_s - call.ready_s
        else:
            self._watch.watch(call)

    def wait_for(self, call: CallRecord) -> None:
        """Wait for a call that has not completed."""
        if self._is_long:
            call.awaited_s = self._waiter.wait_for(call.report)[0]
        else:
            np.asarray(call.report)  # the fastest way to wait: JAX keeps the copy for the next reader
            call.awaited_s = self._now()

    def wait_for_all(self, calls: Iterable[CallRecord]) -> None:
        """Wait for calls, one after the other."""
        for call in calls:
            if call.report.is_ready():
                call.found_s = self._now()
            else:
                self.wait_for(call)

    def conclude(self, calls: Sequence[CallRecord], later: Sequence[CallRecord]) -> None:
        """Say when calls began and completed, as far as that is known, in their records.

        Calls are given in order, each once.

        Args:
            calls: Calls that have completed.
            later: The calls after them.
        """
        # One loop, with everything in reach: this is paid for at every step.
        last_s, typical_s, spread_s, is_done_in_call = (
            self._last_s,
            self._typical_s,
            self._spread_s,
            self._is_done_in_call,
        )
        looks_ahead, latest, apart_s, is_any_long = self.max_inflight > 1, None, 0.0, self._takes_long
        for at, call in enumerate(calls, start=1):
            # The device begins when the call returns. Where it is done by then, it may have begun at once.
            begin_s = call.began_s = call.ready_s if is_done_in_call else call.dispatched_s
            if begin_s < last_s:
                begin_s = last_s
            ended_s = call.awaited_s
            if call.seen_s < ended_s:
                ended_s = call.seen_s
            if ended_s < _NEVER:
                ended_s = self._see(call, begin_s, ended_s)
                typical_s, spread_s = self._typical_s, self._spread_s
            else:
                # Nobody saw it: it lies between what is known, and took as long as such calls take.
                earliest_s, latest_s, num_steps = begin_s, call.found_s, call.num_steps or 1
                following = calls[at] if at < len(calls) else later[0] if later else None
                if following is not None and following.was_idle:  # found complete then
                    if following.ready_s < latest_s:
                        latest_s = following.ready_s
                elif following is not None:
                    if latest is None:
                        latest = self._latest_of(calls, later)
                    latest_s = latest[at - 1]
                    if looks_ahead and not following.was_blocked and following.ready_s > earliest_s:
                        earliest_s = following.ready_s  # looked at then, and not complete
                if latest_s < earliest_s:
                    latest_s = earliest_s
                if call.was_idle and following is not None and not self._durations:
                    self._learn_bound(call, begin_s, following.ready_s)
                    typical_s, spread_s = self._typical_s, self._spread_s
                ended_s = latest_s if typical_s is None else begin_s + typical_s * num_steps
                ended_s = earliest_s if ended_s < earliest_s else latest_s if ended_s > latest_s else ended_s
                unsure_s, spread_of_call_s = latest_s - earliest_s, spread_s * num_steps
                if unsure_s < WATCH_ALL_FROM_S * num_steps:
                    call.uncertainty_s = spread_of_call_s if spread_of_call_s < unsure_s else unsure_s
                else:
                    ended_s = _end_in_long_stretch(ended_s, earliest_s, latest_s, following)
                    call.uncertainty_s = max(ended_s - earliest_s, latest_s - ended_s)
                self._is_last_seen = False
                if call.was_idle or call.is_disturbed:
                    self._last_seen_s, self._num_unseen = _NEVER, 0
                elif self._last_seen_s < _NEVER:  # its steps count, as long as the device does not pause
                    self._num_unseen += num_steps
            call.completed_s = ended_s
            # Where nobody saw two ends, they may seem close: calls that take long are far apart all the same.
            gap_s, last_s = ended_s - last_s, ended_s
            is_any_long = is_any_long or gap_s >= WATCH_ALL_FROM_S
            apart_s += gap_s if gap_s < SAMPLE_EVERY_S else SAMPLE_EVERY_S  # a pause is no reason to watch many calls
        self._last_s = last_s
        if calls:
            self._is_long = self._takes_long or apart_s >= WATCH_ALL_FROM_S * len(calls)
            is_short = self._is_long and apart_s < CHEAP_FROM_S * len(calls)
            self._num_ahead = self._num_ahead + len(calls) if is_short and _runs_ahead(calls) else 0
            self._look_for_latest(self._num_ahead >= MIN_AHEAD_CALLS)
        if is_any_long and not self._looks_for_latest:
            self.next_watch_s = 0.0

    def _look_for_latest(self, looks: bool) -> None:
        """Have the thread look for the last call by itself, or be woken up at calls again."""
        if self.latest is not None and looks != self._looks_for_latest:
            self._looks_for_latest = looks
            self.next_watch_s = _NEVER if looks else 0.0
            self._watch.look_for(self.latest if looks else None)

    def _see(self, call: CallRecord, begin_s: float, seen_s: float) -> float:
        """Learn from a call that somebody saw to complete.

        Args:
            call: The call.
            begin_s: When the device began with it at the earliest.
            seen_s: When it was seen.

        Returns:
            When it completed in the order of the calls.
        """
        # A CPU computes calls that do not depend on each other at the same time.
        is_beside, num_steps = seen_s < begin_s, call.num_steps or 1  # a part of a step counts as one
        ended_s = begin_s if is_beside else seen_s
        if (self._is_last_seen or call.was_idle) and not (call.is_disturbed or is_beside):
            self._add_duration((ended_s - begin_s) / num_steps)
        elif self._num_unseen and not (call.was_idle or call.is_disturbed) and seen_s > self._last_seen_s:
            self._add_duration((seen_s - self._last_seen_s) / (self._num_unseen + num_steps))
        self._last_seen_s, self._num_unseen, self._is_last_seen = seen_s, 0, True
        return ended_s

    def close(self) -> None:
        """End the thread."""
        self._watch.close()
        self._waiter.close()

    def _latest_of(self, calls: Sequence[CallRecord], later: Sequence[CallRecord]) -> list[float]:
        """When calls have completed at the latest, by what is known of them and of those after them.

        Args:
            calls: The calls.
            later: Those after them.
        """
        room = self.max_inflight
        known = [*calls, *islice(later, min(room, _MAX_LOOKED_AT))]
        latest, latest_s = [], _NEVER
        for at in range(len(known) - 1, -1, -1):
            call = known[at]
            latest_s = min(latest_s, call.found_s, call.seen_s, call.awaited_s)
            if at + room < len(known):  # there was no room before
                latest_s = min(latest_s, known[at + room].ready_s)
            latest.append(latest_s)
            if call.was_idle and call.ready_s < latest_s:  # all before it were found complete then
                latest_s = call.ready_s
        latest.reverse()
        return latest

    def _learn_bound(self, call: CallRecord, begin_s: float, next_s: float) -> None:
        """Learn how long a call takes at most, where none is seen to complete, as next to code that never pauses.

        Args:
            call: A call that was found complete.
            begin_s: When the device began with it at the earliest.
            next_s: When the next call was made. If the call was found shortly before, that says too little.
        """
        if 2 * (call.found_s - begin_s) < next_s - begin_s:
            self._bounds.append(max(call.found_s - begin_s, 0.0) / (call.num_steps or 1))
            if len(self._bounds) >= _MIN_DURATIONS:
                self._typical_s = self._spread_s = statistics.median(self._bounds) / 2

    def _add_duration(self, seconds: float) -> None:
        self._durations.append(seconds)
        self._num_durations += 1
        if (
            self._num_durations <= _MIN_DURATIONS or self._num_durations % 16 == 0
        ):  # a median at every step would be expensive
            ordered = sorted(self._durations)
            tenth = len(ordered) // 10
            self._typical_s = statistics.median(ordered)
            self._takes_long = self._typical_s >= WATCH_ALL_FROM_S
            if len(ordered) >= _MIN_DURATIONS:
                self._spread_s = (ordered[-1 - tenth] - ordered[tenth]) / 2


def _runs_ahead(calls: Sequence[CallRecord]) -> bool:
    """Whether every call was made right after the one before, with the device still busy.

    Then it matters little when each completed: nothing waited for that, neither the loop's own code nor the device.
    """
    return not any(
        call.was_idle or (call.own_code_until_s or 0.0) - before.dispatched_s >= MIN_PAUSE_S
        for before, call in pairwise(calls)
    )


def _end_in_long_stretch(ended_s: float, earliest_s: float, latest_s: float, following: CallRecord | None) -> float:
    """When a call completed that was followed by a long stretch among short calls, which are not watched.

    The device was slow then, or the host. Code that is not known most often reads a result, and waits for it.

    Args:
        ended_s: When it completed if it took as long as such calls take.
        earliest_s: When it completed at the earliest.
        latest_s: When it completed at the latest.
        following: The call after it.
    """
    until_s = None if following is None else following.own_code_until_s
    if until_s is not None and until_s - earliest_s > (latest_s - earliest_s) / 2:
        return min(until_s, latest_s)
    return ended_s
