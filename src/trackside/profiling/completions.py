"""When the arrays that a call returned are there, seen by a thread that waits for them in the loop's place.

JAX returns before a device has begun. The calls of a loop queue up behind each other, so that the time from a call to
its arrays holds what was in the queue before. A call is therefore said to take the time from its start, or from the
completion of what was called before it if that is later, to its own completion.

An array that was given away to the next call (donated) cannot be waited for. A call of which none is left is over when
the next one is, at the latest: the calls up to the next completion that can be seen share the time until then.

The thread sees a completion as soon as Python lets it run. Where the loop is busy with Python code meanwhile, that may
be up to 5 ms later (`sys.getswitchinterval()`), but never later than the loop's next pause.
"""

import logging
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trackside.clock import Clock

LOGGER = logging.getLogger(__name__)

_NUM_REMEMBERED = 64  # completions; more calls than that inside of one another are not expected
_MAX_UNSEEN = 1024  # calls in a row of which nothing was left to wait for


class Waitable(Protocol):
    """An array of JAX, or what behaves like one."""

    def block_until_ready(self) -> Any:
        """Return when the value is there; raise if there is none to wait for."""
        ...


@dataclass(slots=True)
class Call:
    """A call that has returned, whose arrays may not be there yet."""

    start_s: float
    returned_s: float
    arrays: Sequence[Waitable]
    """What it returned; forgotten as soon as it is there."""
    record: Callable[[float], object]
    """Gets the seconds that it took."""
    on_seen: Callable[[bool], object] | None = None
    """Called when it is over, with whether an array was left to wait for."""


class CompletionWatcher:
    """Waits for the arrays of calls, in the order of the calls. Its thread is started by the first.

    Args:
        clock: Where times come from.
    """

    def __init__(self, clock: Clock):
        self._now = clock.now
        self._calls: queue.SimpleQueue[Call | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, float]] = deque(maxlen=_NUM_REMEMBERED)
        """When calls returned and when they were complete, both rising."""
        self._unseen: list[Call] = []
        """Calls that left nothing to wait for; without their arrays."""
        self._forgotten_s = -math.inf
        """Calls that had returned by then do not count."""

    def watch(self, call: Call) -> None:
        """Record a call when its arrays are there. Returns at once."""
        self._calls.put(call)
        if self._thread is None:
            self._start()

    def wait_for(self, call: Call) -> None:
        """Record a call when its arrays are there, and return then."""
        self.wait(None)
        self._finish(call)

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
        self._calls.put(reached)
        return reached.wait(timeout_s)

    def forget(self) -> None:
        """Leave out the calls so far whose arrays are not there yet."""
        self._forgotten_s = self._now()

    def stop(self) -> None:
        """End the thread after the calls so far. It is started again by the next."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            if thread is not threading.current_thread():
                thread.join(timeout=60)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trackside-completions", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            try:
                if isinstance(item, Call):
                    self._finish(item)
                else:
                    self._share_out(self._now())
            except Exception:
                LOGGER.exception("The completion of a call could not be recorded")
            if isinstance(item, threading.Event):
                item.set()
            del item  # or its arrays would live until the next call

    def _finish(self, call: Call) -> None:
        is_seen = _wait(call.arrays)
        completed_s = self._now()
        call.arrays = ()
        self._unseen.append(call)
        if is_seen or len(self._unseen) >= _MAX_UNSEEN:
            self._share_out(completed_s)
        if call.on_seen is not None:
            call.on_seen(is_seen)

    def _share_out(self, completed_s: float) -> None:
        """Record the calls of which the last is complete now."""
        calls, self._unseen = self._unseen, []
        if not calls:
            return
        begin_s = max(calls[0].start_s, self._completed_before(calls[0].start_s))
        seconds = max(completed_s - begin_s, 0.0) / len(calls)
        for call in calls:
            if call.returned_s > self._forgotten_s:
                call.record(seconds)
        self._seen.append((calls[-1].returned_s, completed_s))

    def _completed_before(self, start_s: float) -> float:
        """When the last call was complete that had returned at a time. Calls inside of another are not before it."""
        return next((completed_s for returned_s, completed_s in reversed(self._seen) if returned_s <= start_s), start_s)


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
