"""A thread that waits for calls to complete, for a loop that has other things to do at that moment.

It is given calls, or looks for itself now and then which call was made last. Where it cannot say when a call completed,
it says when it noticed: the latest time at which the call can have completed.
"""

import contextlib
import queue
import threading
from collections.abc import Callable

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.profiling.array_state import is_ready
from trackside.profiling.call_record import CallRecord
from trackside.profiling.wake_up import Waiter

LOOK_EVERY_S = 0.01
"""How often the thread looks for the last call, if it is to do so. A wake-up takes some 50 us of a busy core."""
LOOK_SELDOM_S = 0.1
"""How often it does so while no calls are made."""
_LOOK = object()
"""Wakes the thread up to look."""


class CompletionWatch:
    """Notes in call records when their calls completed.

    Args:
        clock: Where times come from.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK):
        self._clock = clock
        self._calls: queue.SimpleQueue[CallRecord | object | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._latest: Callable[[], CallRecord | None] | None = None

    def watch(self, call: CallRecord) -> None:
        """Note in the record of a call when it completes. Calls are given in the order in which they complete."""
        self._start()
        self._calls.put(call)

    def look_for(self, latest: Callable[[], CallRecord | None] | None) -> None:
        """From now on, look every few milliseconds which call was made last, and note when it completes.

        This costs the loop nothing at its calls. A loop that stops to wait for a call is seen to do so.

        Args:
            latest: Gives the last call; None to look no longer.
        """
        self._latest = latest
        if latest is not None:
            self._start()
            self._calls.put(_LOOK)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="completion-watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        waiter, seen, call = Waiter(self._clock), None, None
        while True:
            latest = self._latest
            timeout_s = None if latest is None else LOOK_SELDOM_S if call is seen else LOOK_EVERY_S
            seen = call
            try:
                call = self._calls.get(timeout=timeout_s)
                if call is None:
                    break
            except queue.Empty:
                call = None if latest is None else latest()
            if isinstance(call, CallRecord) and call is not seen:
                self._note(call, waiter)
        waiter.close()

    def _note(self, call: CallRecord, waiter: Waiter) -> None:
        with contextlib.suppress(Exception):  # a call that failed is reported where it was made
            ready_s, is_exact = self._clock.now(), False
            if not is_ready(call.report):  # else the thread is too late to see it
                ready_s, is_exact = waiter.wait_for(call.report)
            if is_exact:
                call.seen_s = ready_s
            elif ready_s < call.found_s:
                call.found_s = ready_s
