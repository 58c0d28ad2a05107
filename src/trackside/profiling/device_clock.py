"""When the device computed and when it idled, observed from the outside: without a trace and without waiting.

The device begins with a call when it is made, or when the call before it has completed; `call_ends` says when that was.
In between it idles, for the reason that the host was busy with something else. How far off that may be is counted as
well: completions are noticed late, and where in a call the device begins is not seen.
"""

import math
from collections import defaultdict, deque
from collections.abc import Sequence

from trackside.profiling.call_ends import CallEnds
from trackside.profiling.call_record import CallRecord
from trackside.profiling.host_computing import HostComputing
from trackside.profiling.ledger_totals import DATA_WAIT, DISPATCH, HOST_TO_DEVICE, OTHER

_PAUSE = "pause"
_REASONS = (OTHER, DATA_WAIT, HOST_TO_DEVICE, DISPATCH)
MAX_UNKNOWN_SHARE = 0.5
"""How much time may pass between calls with unknown ends, as a share of the known time, before idling is unknown."""


class DeviceClock:
    """Follows the device through the calls of a loop.

    Args:
        ends: Says when calls complete.

    Attributes:
        busy_s: How long the device computed.
        idle_s: How long it idled between calls.
        idle_low_s: How long it idled at least.
        idle_high_s: How long it idled at most.
        idle_by_reason: What the host did while it idled, in seconds by part of the ledger.
        is_host: Whether it is the process itself: calls are over when they return, and what the process computes
            between them is no idle time.
    """

    def __init__(self, ends: CallEnds):
        self.busy_s = 0.0
        self.idle_s = 0.0
        self.idle_low_s = 0.0
        self.idle_high_s = 0.0
        self.idle_by_reason: defaultdict[str, float] = defaultdict(float)
        self.is_host = False
        self._computing = HostComputing()
        self._ends = ends
        self._waiting: deque[CallRecord] = deque()
        """Calls that may not have completed yet."""
        self._before: dict[int, str] = {}
        """What came before some of them: what the host did, or a pause."""
        self._left_out: dict[int, float] = {}
        """How long the device was busy with something else before some of them."""
        self._is_paused = False
        self._left_out_s = 0.0
        self._last: CallRecord | None = None
        self._unknown_since_s = math.nan
        """When the last call returned, if its end is unknown; not a number if that is known."""
        self._unknown_s = 0.0

    @property
    def is_known(self) -> bool:
        """Whether it is known how long calls take on the device, and what it does between most of them."""
        return self._ends.is_known and self._unknown_s <= MAX_UNKNOWN_SHARE * (self.busy_s + self.idle_s)

    def add_calls(self, calls: Sequence[CallRecord], between: str) -> None:
        """Account for calls, as soon as they have completed. They are given in order; it need not be at once.

        Args:
            calls: The calls.
            between: What the host did before the first of them.
        """
        if calls:
            if self._is_paused or between != OTHER:
                self._before[id(calls[0])] = _PAUSE if self._is_paused else between
            if self._left_out_s:
                self._left_out[id(calls[0])] = self._left_out_s
            self._is_paused, self._left_out_s = False, 0.0
            self._waiting.extend(calls)
        self.update()

    def pause(self) -> None:
        """The next call does not follow the last one: the time in between is not counted."""
        self._is_paused = True

    def leave_out(self, seconds: float) -> None:
        """The device was busy with something else, which has just ended, for part of the time before the next call."""
        self._left_out_s += seconds

    def update(self) -> None:
        """Account for the calls that have completed since."""
        # One loop, with everything in reach: this is paid for at every step.
        waiting, last, is_known, is_host = self._waiting, self._last, self._ends.is_known, self.is_host
        busy_s = idle_s = low_s = high_s = 0.0
        other_s = data_wait_s = host_to_device_s = dispatch_s = 0.0
        while waiting:
            call = waiting[0]
            completed_s, began_s = call.completed_s, call.began_s
            if completed_s != completed_s:  # not a number: under way
                break
            waiting.popleft()
            before = self._before.pop(id(call), OTHER) if self._before else OTHER
            left_out_s = self._left_out.pop(id(call), 0.0) if self._left_out else 0.0
            if call.is_disturbed or not is_known:  # most of it is no computation, or nothing is known
                self._unknown_since_s, last = completed_s, None
                continue
            if is_host:  # which computes during the call, and at no other time
                began_s, completed_s = call.began_s, call.completed_s = call.ready_s, call.dispatched_s
            if before == _PAUSE:
                pass
            elif last is None:
                if began_s > self._unknown_since_s:
                    self._unknown_s += began_s - self._unknown_since_s
            elif is_host:
                busy_s += self._add_host_gap(last, call, before)
            else:
                last_s, unsure_s = last.completed_s, last.uncertainty_s
                if left_out_s:
                    last_s = min(last_s + left_out_s, began_s)
                # The device may have begun with it anywhere in the call.
                gap_s = call.dispatched_s + unsure_s - last_s
                if gap_s > 0:
                    high_s += gap_s
                    surely_s = call.ready_s - unsure_s - last_s
                    if surely_s > 0:
                        low_s += surely_s
                    if began_s > last_s:
                        idle_s += began_s - last_s
                        if call.before or before != OTHER:
                            self._add_reasons(self.idle_by_reason, last_s, call, before)
                        else:  # the same for most calls
                            since_s, started_s, batch_s, placed_s, ready_s = (
                                last_s,
                                call.started_s,
                                call.batch_s,
                                call.placed_s,
                                call.ready_s,
                            )
                            if started_s > since_s:
                                other_s += started_s - since_s
                                since_s = started_s
                            if batch_s > since_s:
                                data_wait_s += batch_s - since_s
                                since_s = batch_s
                            if placed_s > since_s:
                                host_to_device_s += placed_s - since_s
                                since_s = placed_s
                            if ready_s > since_s:
                                other_s += ready_s - since_s
                                since_s = ready_s
                            if began_s > since_s:
                                dispatch_s += began_s - since_s
                if last_s > began_s:
                    began_s = last_s
            busy_s += completed_s - began_s
            self._unknown_since_s, last = math.nan, call
        self._last = last
        self.busy_s += busy_s
        self.idle_s += idle_s
        self.idle_low_s += low_s
        self.idle_high_s += high_s
        for reason, seconds in zip(_REASONS, (other_s, data_wait_s, host_to_device_s, dispatch_s), strict=True):
            if seconds:
                self.idle_by_reason[reason] += seconds

    def _add_host_gap(self, last: CallRecord, call: CallRecord, between: str) -> float:
        """Account for the time between two calls, where the device is the process.

        Args:
            last: The call before.
            call: The call.
            between: What the host did before it, where it does not say so itself.

        Returns:
            How long the process computed meanwhile.
        """
        gap: defaultdict[str, float] = defaultdict(float)
        self._add_reasons(gap, last.dispatched_s, call, between)
        computed = self._computing.of_gap(gap, last.computed_after)
        for reason, seconds in gap.items():
            self.idle_by_reason[reason] += seconds - computed.get(reason, 0.0)
        computed_s = sum(computed.values())
        idle_s = sum(gap.values()) - computed_s
        self.idle_s += idle_s
        self.idle_low_s += idle_s
        self.idle_high_s += idle_s
        return computed_s

    def _add_reasons(self, reasons: defaultdict[str, float], since_s: float, call: CallRecord, between: str) -> None:
        """Say what the host did while the device idled.

        Args:
            reasons: Gets the seconds by part.
            since_s: When the call before completed.
            call: The call that ended it.
            between: What the host did before the call, where it does not say so itself.
        """
        ready_s, spans = call.ready_s, call.before
        for reason, until_s in spans:
            if until_s > since_s:
                reasons[reason] += until_s - since_s
                since_s = until_s
        if ready_s > since_s:
            _add_phases(reasons, since_s, call, OTHER if spans else between)  # what is not in there
            since_s = ready_s
        if call.began_s > since_s:
            reasons[DISPATCH] += call.began_s - since_s


def _add_phases(reasons: defaultdict[str, float], since_s: float, call: CallRecord, between: str) -> None:
    """What the host did from some moment until it made a call."""
    started_s, batch_s, placed_s = call.started_s, call.batch_s, call.placed_s
    if started_s > since_s:
        reasons[between] += started_s - since_s
        since_s = started_s
    if batch_s > since_s:
        reasons[DATA_WAIT] += batch_s - since_s
        since_s = batch_s
    if placed_s > since_s:
        reasons[HOST_TO_DEVICE] += placed_s - since_s
        since_s = placed_s
    if call.ready_s > since_s:
        reasons[OTHER] += call.ready_s - since_s
