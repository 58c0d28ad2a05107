"""Sees when the arrays are there that calls have returned: a thread that waits for them in the loop's place.

Each time it wakes up it takes a core and Python's lock from the loop, some 40 us on a small machine. Where short calls
of one function follow each other, it therefore looks at one every `PAUSE_S` only, and counts those between by it.

It sees a completion as soon as Python lets it run. Where the loop is busy with Python code meanwhile, that may be up to
5 ms later (`sys.getswitchinterval()`), but never later than the loop's next pause.
"""

import logging
import queue
import threading
from collections.abc import Sequence

from trackside.clock import Clock
from trackside.profiling.completions import Call, CallSeries, CompletionAccount, Waitable

LOGGER = logging.getLogger(__name__)

PAUSE_S = 0.01
"""How long it looks away from calls that are shorter than half of this."""
MAX_BYTES = 65536
"""Larger arrays are not kept for as long as it looks away."""
NUM_SEEN_FIRST = 64
"""So many calls of a function in a row are each looked at, before some are left out."""


class _Stop:
    """Ends the thread."""


_Item = Call | threading.Event | _Stop


class CompletionWatcher:
    """Waits for the arrays of calls, in the order of the calls. Its thread is started by the first.

    Args:
        clock: Where times come from.
    """

    def __init__(self, clock: Clock):
        self._now = clock.now
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._account = CompletionAccount()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._last_series: CallSeries | None = None
        self._is_pausing = False
        self._hurry = threading.Event()

    def watch(self, call: Call) -> None:
        """Record a call when its arrays are there. Returns at once."""
        self._items.put(call)
        if self._thread is None:
            self._start()
        if self._is_pausing and (call.series is not self._last_series or call.on_seen is not None):
            self._hurry.set()

    def wait_for(self, call: Call) -> None:
        """Record a call when its arrays are there, and return then."""
        self.wait(None)
        self._see([call])

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until all calls so far are recorded.

        Args:
            timeout_s: At most so long; None for as long as it takes.

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
        """Leave out the calls so far whose arrays are not there yet."""
        self._account.forgotten_s = self._now()

    def stop(self) -> None:
        """End the thread after the calls so far. It is started again by the next."""
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
        item = self._items.get()
        while not isinstance(item, _Stop):
            following = None
            try:
                if isinstance(item, Call):
                    following = self._watch_from(item)
                else:
                    self._account.settle_unseen(self._now())
            except Exception:
                LOGGER.exception("The completion of a call could not be recorded")
            if isinstance(item, threading.Event):
                item.set()
            item = following or self._items.get()

    def _watch_from(self, call: Call) -> _Item | None:
        """Record a call, and those after it that can be counted by one of them.

        Returns:
            What was taken from the queue and is not done yet.
        """
        if self._account.has_other_than(call.series):
            self._account.settle_unseen(self._now())
        group_size = self._group_size(call)
        calls, following = self._collect(call, group_size)
        if call.series is not None:
            call.series.num_in_a_row += len(calls)
        if group_size > 1 and _is_ready(calls[-1].arrays):
            # It was complete before anybody looked. The next one is looked at from its start, and tells of these too.
            self._account.add(calls)
            if self._account.is_full:
                self._account.settle_unseen(self._now())
            return following
        self._see(calls)
        del call, calls
        if group_size > 1 and following is None and self._items.qsize() < group_size:
            self._pause()
        return following

    def _group_size(self, call: Call) -> int:
        """How many calls to count by one completion, beginning with a call."""
        series, before = call.series, self._last_series
        self._last_series = series
        if series is None:
            return 1
        if series is not before:
            series.num_in_a_row = 0
        if series.num_in_a_row < NUM_SEEN_FIRST or not series.typical_s or not _is_light(call.arrays):
            return 1
        return max(int(PAUSE_S / series.typical_s), 1)

    def _collect(self, call: Call, group_size: int) -> tuple[list[Call], _Item | None]:
        """The calls that are in the queue, as many as make a group, and more as long as they are complete already."""
        calls = [call]
        while group_size > 1 and calls[-1].on_seen is None and _is_light(calls[-1].arrays):
            if len(calls) >= group_size and not _is_ready(calls[-1].arrays):
                break
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                break
            if not isinstance(item, Call) or item.series is not call.series:
                return calls, item
            calls.append(item)
        return calls, None

    def _see(self, calls: list[Call]) -> None:
        """Wait for the last of some calls, and record them."""
        last = calls[-1]
        is_seen = _wait(last.arrays)
        completed_s = self._now()
        self._account.add(calls)
        if is_seen:
            self._account.settle(completed_s)
        elif self._account.is_full:
            self._account.settle_unseen(completed_s)
        if not is_seen and last.series is not None and last.series.on_lost is not None:
            last.series.on_lost()
        if last.on_seen is not None:
            last.on_seen()

    def _pause(self) -> None:
        self._hurry.clear()
        self._is_pausing = True
        self._hurry.wait(PAUSE_S)
        self._is_pausing = False


def _is_light(arrays: Sequence[Waitable]) -> bool:
    return len(arrays) == 1 and getattr(arrays[0], "nbytes", 0) <= MAX_BYTES


def _is_ready(arrays: Sequence[Waitable]) -> bool:
    """Whether all arrays are there; not where one was given away."""
    try:
        return all(array.is_ready() for array in arrays)
    except Exception:
        return False


def _wait(arrays: Sequence[Waitable]) -> bool:
    """Wait for all arrays that are left, and say whether there was one."""
    is_seen = False
    for array in arrays:
        try:
            array.block_until_ready()
        except Exception:  # given away, or its computation has failed, which the loop will be told by JAX
            continue
        is_seen = True
    return is_seen
