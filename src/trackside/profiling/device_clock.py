"""When the device computed and when it idled, observed from the outside: without a trace and without waiting.

Each call returns a small report that is ready when the device is done with it. Two things are seen for free: when a
wait for a report ends, and, before a call, whether the report of the one before is ready already, which means that the
device has nothing to do. For how long it had nothing to do follows from how long a call takes on the device; that is
measured now and then by a thread that waits for a report.
"""

import contextlib
import queue
import statistics
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.profiling.call_record import CallRecord
from trackside.profiling.ledger import DATA_WAIT, DISPATCH, HOST_TO_DEVICE, OTHER

SAMPLE_EVERY_S = 0.1
_MAX_SAMPLES = 32


class DeviceClock:
    """Follows the device through the calls of a loop.

    Args:
        starts_when_called: Whether the device may begin before a call has returned, as CPUs do, which are the device.
        max_inflight: How many calls may be under way.
        clock: Where times come from.
    """

    def __init__(self, starts_when_called: bool, max_inflight: int = 2, clock: Clock = SYSTEM_CLOCK):
        self.busy_s = 0.0
        self.idle_s = 0.0
        self.idle_by_reason: dict[str, float] = {}
        self._starts_when_called = starts_when_called
        self._num_behind = max_inflight - 1
        self._now = clock.now
        self._durations: deque[float] = deque(maxlen=_MAX_SAMPLES)
        self._sampled_durations: deque[float] = deque(maxlen=_MAX_SAMPLES)
        self._num_durations = 0
        self._typical_s: float | None = None
        self._num_calls = 0
        self._done_s: float | None = None
        """When the device will be done with what it was given, as far as is known."""
        self._blocked_at: tuple[int, float] | None = None
        self.next_sample_s = 0.0
        """From then on, the next call that finds the device idle is worth a sample."""
        self._samples: queue.SimpleQueue[tuple[Any, float] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_known(self) -> bool:
        """Whether it is known how long a call takes on the device."""
        return self._typical_s is not None

    def add_calls(self, calls: Iterable[CallRecord], between: str) -> None:
        """Account for calls. They are given in order; it need not be at once.

        Args:
            calls: The calls.
            between: What the host did before the first of them.
        """
        for call in calls:
            self._add_call(call, between)
            between = OTHER

    def _add_call(self, call: CallRecord, between: str) -> None:
        ready_s, was_idle = call.ready_s, call.was_idle
        self._num_calls += 1
        if call.was_blocked:
            self._note_completion(ready_s)
        typical_s = self._typical_s
        if typical_s is None:
            return
        begins_s = ready_s if self._starts_when_called else call.dispatched_s
        done_s = self._done_s
        if done_s is not None:
            if was_idle and done_s > ready_s:  # it was done earlier than was thought
                self.busy_s -= done_s - ready_s
                done_s = ready_s
            elif not was_idle and done_s < ready_s:
                done_s = ready_s
            if begins_s > done_s:
                phases = (
                    (between, call.started_s),
                    (DATA_WAIT, call.batch_s),
                    (HOST_TO_DEVICE, call.placed_s),
                    (OTHER, ready_s),
                    (DISPATCH, begins_s),
                )
                self._add_idle(done_s, phases)
            else:
                begins_s = done_s
        self.busy_s += typical_s
        self._done_s = begins_s + typical_s

    def pause(self) -> None:
        """The next call does not follow the last one: the time in between is not counted."""
        self._done_s, self._blocked_at = None, None

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._samples.put(None)
            self._thread.join()
            self._thread = None

    def _note_completion(self, ready_s: float) -> None:
        """A wait has ended with the completion of a call; after the one before it, that gives a duration."""
        number = self._num_calls
        if self._blocked_at is not None and self._blocked_at[0] == number - 1:
            self._add_duration(ready_s - self._blocked_at[1])
        self._blocked_at = number, ready_s
        if self._typical_s is not None:
            self._done_s = ready_s + self._num_behind * self._typical_s  # others are under way behind it

    def _add_idle(self, since_s: float, phases: tuple[tuple[str, float], ...]) -> None:
        for reason, until_s in phases:
            if until_s > since_s:
                self.idle_s += until_s - since_s
                self.idle_by_reason[reason] = self.idle_by_reason.get(reason, 0.0) + until_s - since_s
                since_s = until_s

    def sample(self, report: Any, ready_s: float, dispatched_s: float) -> None:
        """Measure how long a call that was just made takes on a device that had nothing else to do.

        Args:
            report: The report of the call.
            ready_s: When there was room among the calls in flight.
            dispatched_s: When the call returned.
        """
        self.next_sample_s = dispatched_s + SAMPLE_EVERY_S
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="device-clock", daemon=True)
            self._thread.start()
        self._samples.put((report, ready_s if self._starts_when_called else dispatched_s))

    def _watch(self) -> None:
        while (item := self._samples.get()) is not None:
            report, begins_s = item
            with contextlib.suppress(Exception):  # a call that failed is reported where it was made
                report.block_until_ready()
                self._sampled_durations.append(self._now() - begins_s)
                if not self._durations:
                    # A thread wakes up late on a busy machine, never early.
                    ordered = sorted(self._sampled_durations)
                    self._typical_s = ordered[len(ordered) // 5]

    def _add_duration(self, seconds: float) -> None:
        self._durations.append(seconds)
        self._num_durations += 1
        if self._num_durations < 4 or self._num_durations % 16 == 0:  # a median at every step would be expensive
            self._typical_s = statistics.median(self._durations)
