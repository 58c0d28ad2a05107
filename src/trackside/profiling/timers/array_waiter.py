"""A thread that waits for the arrays returned by calls, so that the loop does not have to.

Calls are taken from a queue in the order in which they returned. For each of them the thread blocks until its arrays
are computed and reports the time to `CallDurations`, which works out how long the call took.

Waking up takes a core and Python's lock from the loop, about 40 us on a small machine. When short calls of one function
follow each other, the thread therefore pauses for `PAUSE_S` between two of them, and the calls in between form a group
of which only the last is watched.

It sees a completion as soon as Python lets it run. If the loop is busy with Python code, that may be up to 5 ms later
(`sys.getswitchinterval()`), but never later than the loop's next pause.
"""

import logging
import queue
import threading
from collections.abc import Sequence

from trackside.clock import Clock
from trackside.profiling.array_state import is_ready
from trackside.profiling.timers.call_durations import Call, CallDurations, CallSeries, Waitable
from trackside.profiling.timers.device_outputs import is_light

LOGGER = logging.getLogger(__name__)

PAUSE_S = 0.01
"""How long it pauses between calls that are shorter than half of this."""
NUM_SEEN_FIRST = 64
"""The first calls of a function in a row are all watched, this many of them."""


class _Stop:
    """Ends the thread."""


_Item = Call | threading.Event | _Stop


class ArrayWaiter:
    """Waits for the arrays of calls, in the order of the calls. The first call starts its thread.

    Args:
        clock: Where times come from.
    """

    def __init__(self, clock: Clock):
        self._now = clock.now
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._held: _Item | None = None
        """An item that was taken from the queue before its turn."""
        self._durations = CallDurations()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._last_series: CallSeries | None = None
        self._watches_next = False
        """Whether to watch the next call from its return on."""
        self._is_pausing = False
        self._hurry = threading.Event()

    def watch(self, call: Call) -> None:
        """Record a call when its arrays are computed. Returns at once."""
        self._items.put(call)
        if self._thread is None:
            self._start()
        if self._is_pausing and (call.series is not self._last_series or call.on_seen is not None):
            self._hurry.set()

    def wait_for(self, call: Call) -> None:
        """Record a call when its arrays are computed, and return then."""
        self.wait(None)
        self._see([call], is_typical=True)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until all calls so far are recorded.

        Args:
            timeout_s: The longest to wait; None for as long as it takes.

        Returns:
            Whether they are.
        """
        if self._thread is None:
            return True
        reached = threading.Event()
        self._items.put(reached)
        self._hurry.set()
        return reached.wait(timeout_s)

    def forget(self) -> None:
        """Leave out the calls so far whose arrays are not computed yet."""
        self._durations.forgotten_s = self._now()

    def stop(self) -> None:
        """End the thread after the calls so far. The next call starts it again."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._items.put(_Stop())
            self._hurry.set()
            if thread is not threading.current_thread():
                thread.join(timeout=60)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trackside-completions", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not isinstance(item := self._take(), _Stop):
            try:
                if isinstance(item, Call):
                    self._watch_from(item)
                else:
                    self._durations.close(self._now())
            except Exception:
                LOGGER.exception("The completion of a call could not be recorded")
            if isinstance(item, threading.Event):
                item.set()
            del item  # or it would keep arrays until the next call
        self._durations.close(self._now())

    def _take(self) -> _Item:
        """The next item. Calls that are complete are recorded before waiting any longer for it."""
        if self._held is not None:
            item, self._held = self._held, None
            return item
        if self._durations.has_complete:
            try:
                return self._items.get(timeout=PAUSE_S)
            except queue.Empty:
                self._durations.close(self._now())
        return self._items.get()

    def _watch_from(self, call: Call) -> None:
        """Record a call, with those after it that form a group with it."""
        group_size = self._group_size(call)
        if group_size == 1:
            self._see([call], is_typical=True)
        elif self._watches_next and self._items.empty():
            self._watches_next = False
            self._see([call], is_typical=True)
            self._pause()
        else:
            self._watch_group(self._collect(call, group_size), group_size)

    def _watch_group(self, calls: list[Call], group_size: int) -> None:
        last = calls[-1]
        if last.on_seen is None and _are_ready(last.arrays):  # nobody saw when it was complete
            self._durations.add_complete(calls, self._now())
            self._watches_next = True
            return
        # A device that pauses between calls is judged by a call watched from its start, not by one that is running.
        self._watches_next = last.is_after_pause
        self._see(calls, is_typical=False)
        if not self._watches_next and self._held is None and self._items.qsize() < group_size:
            self._pause()

    def _group_size(self, call: Call) -> int:
        """How many calls form a group of which the last is watched, beginning with this one."""
        series, before = call.series, self._last_series
        self._last_series = series
        if series is None:
            return 1
        if series is not before:
            series.num_in_a_row, self._watches_next = 0, False
        series.num_in_a_row += 1
        if series.num_in_a_row < NUM_SEEN_FIRST or not series.mean_s or not is_light(call.arrays):
            return 1
        return max(int(PAUSE_S / series.mean_s), 1)

    def _collect(self, call: Call, group_size: int) -> list[Call]:
        """Calls from the queue: as many as form a group, and more as long as they are complete already."""
        calls = [call]
        while calls[-1].on_seen is None and is_light(calls[-1].arrays):
            if len(calls) >= group_size and not _are_ready(calls[-1].arrays):
                break
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                break
            if not isinstance(item, Call) or item.series is not call.series:
                self._held = item
                break
            calls.append(item)
        return calls

    def _see(self, calls: list[Call], is_typical: bool) -> None:
        """Wait for the last of some calls, and record them."""
        last = calls[-1]
        is_seen = _wait(last.arrays)
        completed_s = self._now()
        try:
            if is_seen:
                self._durations.add_seen(calls, completed_s, is_typical)
            else:
                self._lose(calls, completed_s)
        finally:
            if last.on_seen is not None:
                last.on_seen()

    def _lose(self, calls: list[Call], now_s: float) -> None:
        for call in calls:
            self._durations.add_lost(call, now_s)
        series = calls[-1].series
        if series is not None and series.on_lost is not None:
            series.on_lost()

    def _pause(self) -> None:
        self._hurry.clear()
        self._is_pausing = True
        self._hurry.wait(PAUSE_S)
        self._is_pausing = False


def _are_ready(arrays: Sequence[Waitable]) -> bool:
    """Whether all arrays are computed; False if one was donated."""
    try:
        return all(is_ready(array) for array in arrays)
    except Exception:
        return False


def _wait(arrays: Sequence[Waitable]) -> bool:
    """Wait for all arrays that are left; whether there was one."""
    is_seen = False
    for array in arrays:
        try:
            array.block_until_ready()
        except Exception:  # donated, or its computation has failed, which JAX reports to the loop
            continue
        is_seen = True
    return is_seen
