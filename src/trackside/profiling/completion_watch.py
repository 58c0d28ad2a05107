"""A thread that waits for calls to complete, for a loop that has other things to do at that moment.

Where it cannot say when that was, it says when it noticed: the latest time at which the call can have completed.
"""

import contextlib
import queue
import threading

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.profiling.array_state import is_ready
from trackside.profiling.call_record import CallRecord
from trackside.profiling.wake_up import Waiter


class CompletionWatch:
    """Notes in call records when their calls completed.

    Args:
        clock: Where times come from.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK):
        self._clock = clock
        self._calls: queue.SimpleQueue[CallRecord | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def watch(self, call: CallRecord) -> None:
        """Note in the record of a call when it completes. Calls are given in the order in which they complete."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="completion-watch", daemon=True)
            self._thread.start()
        self._calls.put(call)

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        waiter = Waiter(self._clock)
        while (call := self._calls.get()) is not None:
            with contextlib.suppress(Exception):  # a call that failed is reported where it was made
                ready_s, is_exact = self._clock.now(), False
                if not is_ready(call.report):  # else the thread is too late to see it
                    ready_s, is_exact = waiter.wait_for(call.report)
                if is_exact:
                    call.seen_s = ready_s
                elif ready_s < call.found_s:
                    call.found_s = ready_s
        waiter.close()
