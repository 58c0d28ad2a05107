"""When the arrays that a call returned are there, seen without making the loop wait.

JAX returns before a device has begun. The calls of a loop queue up behind each other, so that the time from a call to
its arrays holds what was in the queue before. A call is therefore said to take the time from its start, or from the
completion of what was called before it if that is later, to its own completion.

A thread that waits for the arrays of every call costs steps of a millisecond some percent of their time, as Python and
the cores have to change hands for each. So the loop looks itself, when a call has returned and before the next begins:

- Complete when it returned: that is when it ended.
- Complete before another call began, with a later one still in the queue: that is when it ended. Seen late by what the
  loop did meanwhile, which the next one then takes less.
- Nothing in the queue before another call began: the last one ended some time ago, and nobody saw when. For these the
  thread waits for one call every `WATCH_EVERY_S`. If the next call began shortly after that one's end, the loop waits
  for its steps, and each is said to have taken the time until the next began, without that gap. Else each is said to
  have taken as long as the one that was seen, but not less than its call took, nor more than the time until the next.

The thread also waits for each call of a function that is not called again and again.

An array that was given away to the next call (donated) cannot be waited for. A call of which none is left is over when
the next one is, at the latest: the calls up to the next completion that can be seen share the time until then.

The thread sees a completion as soon as Python lets it run. Where the loop is busy with Python code meanwhile, that may
be up to 5 ms later (`sys.getswitchinterval()`), but never later than the loop's next pause.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trackside.clock import Clock

LOGGER = logging.getLogger(__name__)

WATCH_EVERY_S = 0.05
"""When none was seen to end for so long, the thread waits for one."""

_SMALL_GAP = 0.25  # between the end of a call and the start of the next, as a part of what a call takes
_NUM_REMEMBERED = 64  # completions; more calls than that inside of one another are not expected


class Waitable(Protocol):
    """An array of JAX, or what behaves like one."""

    def is_ready(self) -> bool:
        """Whether the value is there; raise if there is none to wait for."""
        ...

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
    """Gets the seconds that it took. Calls of one function have the same."""
    on_seen: Callable[[bool], object] | None = None
    """Called when it was seen to be over, with whether an array was left to see that by. Of calls that are not urgent,
    some are not seen by themselves."""
    follows_idle: bool = False
    """What `CompletionWatcher.look` said right before the call."""
    is_urgent: bool = False
    """Whether the thread has to wait for this one."""


@dataclass(slots=True)
class _Group:
    """Calls of one function that followed each other, of which the last is seen."""

    calls: list[Call]
    over_by_s: float | None = None
    """When the last was found to be complete; None if that has to be waited for."""
    is_exact: bool = True
    """Whether it was complete then and not before."""


class CompletionWatcher:
    """Sees the arrays of calls come, in the order of the calls. Its thread is started when there is one to wait for.

    Args:
        clock: Where times come from.
    """

    def __init__(self, clock: Clock):
        self._now = clock.now
        self._queue: queue.SimpleQueue[_Group | threading.Event | None] = queue.SimpleQueue()
        self._num_queued = 0
        """Groups that the thread has not recorded yet."""
        self._thread: threading.Thread | None = None
        # Reentrant: a signal handler or a finalizer may call something while its thread is in here.
        self._lock = threading.RLock()
        self._over: list[Call] = []
        """Calls that are complete, or left nothing to look at, since when nobody knows; without their arrays."""
        self._waiting: list[Call] = []
        """Calls after them that were not complete when somebody looked."""
        self._previous: tuple[Callable[[float], object], float] | None = None
        """What recorded the last call, and when that returned."""
        self._last_seen_s = float("-inf")
        """When a call was seen to end, or given to the thread to wait for."""
        self._typical_s = 0.0
        """What a call took that was seen last."""
        self._seen: deque[tuple[float, float]] = deque(maxlen=_NUM_REMEMBERED)
        """When calls returned and when they were complete, both rising."""
        self._unseen: list[Call] = []
        """Calls that left nothing to wait for; without their arrays."""

    def look(self) -> bool:
        """Take note of what is complete. To be called right before a call.

        Returns:
            Whether the device had nothing to do, and since when nobody saw. The call should be told.
        """
        if not self._waiting:
            return False
        with self._lock:
            is_ready = None
            while self._waiting and (is_next_ready := _is_ready(self._waiting[0])) is not False:
                is_ready = is_next_ready
                call = self._waiting.pop(0)
                call.arrays = ()
                self._over.append(call)
            if not self._waiting:
                return bool(is_ready)
            if is_ready:
                self._hand_over(self._now())
            return False

    def watch(self, call: Call) -> None:
        """Record a call when its arrays are there. Returns at once."""
        with self._lock:
            is_next = self._is_next(call)
            if not is_next:
                self._close(call.start_s)
            self._previous = (call.record, call.returned_s)
            self._waiting.append(call)
            if _is_ready(call):
                self._hand_over_all(call.returned_s)
            elif call.is_urgent or not is_next or call.returned_s - self._last_seen_s >= WATCH_EVERY_S:
                self._hand_over_all()

    def wait_for(self, call: Call) -> None:
        """Record a call when its arrays are there, and return then."""
        self.wait(None)
        is_seen = _wait(call.arrays)
        with self._lock:
            self._finish(_Group([call], self._now()), is_seen)

    def settle(self) -> None:
        """Record what is complete and was not seen to end; what is not, will be when it is."""
        with self._lock:
            self.look()
            self._close(self._now())

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until all calls so far are recorded.

        Args:
            timeout_s: At most so long; None for as long as it takes.

        Returns:
            Whether they are.
        """
        self.settle()
        if self._thread is None:
            return True
        reached = threading.Event()
        self._queue.put(reached)
        return reached.wait(timeout_s)

    def stop(self) -> None:
        """End the thread after the calls so far. It is started again by the next."""
        self.settle()
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(timeout=60)

    def _is_next(self, call: Call) -> bool:
        """Whether the call before was one of the same function, and over before this one began: not inside of it."""
        if self._previous is None:
            return False
        record, returned_s = self._previous
        return record == call.record and returned_s <= call.start_s

    def _close(self, over_by_s: float) -> None:
        """Record all calls so far, as what comes is no part of what they share. If all are complete, since a time."""
        if self._waiting:
            self._hand_over_all()
        elif self._over:
            self._hand_over(over_by_s, is_exact=False)

    def _hand_over_all(self, over_by_s: float | None = None) -> None:
        self._over += self._waiting
        self._waiting = []
        self._hand_over(over_by_s)

    def _hand_over(self, over_by_s: float | None = None, is_exact: bool = True) -> None:
        """Record what is over, now if nothing is before it, else by the thread.

        Args:
            over_by_s: When the last one was found to be complete; None if that has to be waited for.
            is_exact: Whether it was complete then and not before.
        """
        group, self._over = _Group(self._over, over_by_s, is_exact), []
        if is_exact:
            self._last_seen_s = group.calls[-1].returned_s if over_by_s is None else over_by_s
        for call in group.calls[:-1]:
            call.arrays = ()
        if over_by_s is not None and not self._num_queued:
            self._finish(group, is_seen=True)
            return
        self._num_queued += 1
        self._queue.put(group)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trackside-completions", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                with self._lock:
                    self._share_out(self._now())
                item.set()
                continue
            is_seen = item.over_by_s is not None or _wait(item.calls[-1].arrays)
            completed_s = self._now()
            with self._lock:
                self._num_queued -= 1
                if item.over_by_s is None:
                    item.over_by_s = completed_s
                self._finish(item, is_seen)
            del item  # or its arrays would live until the next call

    def _finish(self, group: _Group, is_seen: bool) -> None:
        last = group.calls[-1]
        last.arrays = ()
        self._unseen += group.calls
        try:
            if is_seen and group.over_by_s is not None:
                self._share_out(group.over_by_s, group.is_exact)
            if last.on_seen is not None:
                last.on_seen(is_seen)
        except Exception:
            LOGGER.exception("The completion of a call could not be recorded")

    def _share_out(self, over_by_s: float, is_exact: bool = True) -> None:
        """Record the calls of which the last is complete."""
        calls, self._unseen = self._unseen, []
        if not calls:
            return
        completed_before_s = self._completed_before(calls[0].start_s)
        if is_exact and len(calls) == 1:  # as most are: the same as below, with less to do
            call = calls[0]
            self._typical_s = seconds = max(over_by_s - max(call.start_s, completed_before_s), 0.0)
            self._seen.append((call.returned_s, over_by_s))
            call.record(seconds)
            return
        gap_s = max(calls[0].start_s - completed_before_s, 0.0)
        stretches = _split_where_idle(calls)
        begins = [max(calls[0].start_s, completed_before_s), *(stretch[0].start_s for stretch in stretches[1:])]
        ends = [*begins[1:], over_by_s]
        if is_exact:
            self._typical_s = max(over_by_s - begins[-1], 0.0) / len(stretches[-1])
        completed_s = begins[0]
        for index, (stretch, begin_s, end_s) in enumerate(zip(stretches, begins, ends, strict=True)):
            seconds = max(end_s - begin_s, 0.0)
            if not is_exact or index < len(stretches) - 1:
                at_least_s = stretch[-1].returned_s - begin_s
                seconds = min(max(self._estimate(seconds, gap_s, len(stretch)), at_least_s), seconds)
            completed_s = begin_s + seconds
            for call in stretch:
                call.record(seconds / len(stretch))
        self._seen.append((calls[-1].returned_s, completed_s))

    def _estimate(self, at_most_s: float, gap_s: float, num_calls: int) -> float:
        """What calls took that nobody saw end, from the time until the next one began, and from what was seen."""
        waits_for_steps = gap_s < _SMALL_GAP * self._typical_s and at_most_s < WATCH_EVERY_S
        return at_most_s - gap_s if waits_for_steps else num_calls * self._typical_s

    def _completed_before(self, start_s: float) -> float:
        """When the last call was complete that had returned at a time. Calls inside of another are not before it."""
        for returned_s, completed_s in reversed(self._seen):
            if returned_s <= start_s:
                return completed_s
        return start_s


def _split_where_idle(calls: list[Call]) -> list[list[Call]]:
    """The calls in stretches during which the device was always busy."""
    stretches = [[calls[0]]]
    for call in calls[1:]:
        if call.follows_idle:
            stretches.append([])
        stretches[-1].append(call)
    return stretches


def _is_ready(call: Call) -> bool | None:
    """Whether the arrays that a call returned are there, without waiting for them; None if there is none to look at."""
    try:
        return all(array.is_ready() for array in reversed(call.arrays))
    except Exception:  # given away, or its computation has failed
        return None


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
