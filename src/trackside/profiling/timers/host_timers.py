"""The hot path of the timers: starts, ends, and the blocks between them.

Durations of an operation are appended to a list and processed by the thousand; the starts that are open in a thread are
a list too. Appending to a list needs no lock. Functions are looked up before they are called (`now = self._now`):
Python caches the lookup of an attribute, but not of one that is called like a method.

Most timers have no other timer inside. Their start is a plain float: the object that `start_timer` returned, so that
`is` finds it. When another timer ends inside of one, its start is replaced by an `_EnclosingStart`, equal in value but
another object, and from then on the slower path handles it. Creating a record for each start would cost 45 ns of 480.
"""

import contextlib
import contextvars
import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar, cast

from trackside.clock import Clock
from trackside.errors import ConfigError
from trackside.profiling.timers.durations import MAX_PENDING, DurationSketch

LOGGER = logging.getLogger(__name__)

Result = TypeVar("Result")

MAX_OPERATIONS = 1024
"""How many names are distinguished; operations under further names are counted together."""
OTHER_OPERATIONS = "other_operations"
"""What operations beyond `MAX_OPERATIONS` are counted as."""
_NUM_TRIES = 3
_MAX_OPEN = 4096  # starts in one thread that were not ended, before the first are forgotten


class _OpenTimers(deque[float]):
    """The starts that are open in one thread, outermost first."""

    __slots__ = ()


class _EnclosingStart(float):
    """A start with other operations inside that have ended. It replaces the object that the user has (see above)."""

    __slots__ = ("inside_s", "until_s")

    inside_s: float
    """Seconds of these operations; overlaps count once."""
    until_s: float
    """When the last of them ended."""


class HostTimers:
    """Times what happens between two moments, by name. Any thread may use it.

    Args:
        clock: Where times come from.
        enabled: Whether it measures. Can be changed at any time, by setting the attribute.
    """

    def __init__(self, clock: Clock, enabled: bool = True):
        self.clock = clock
        self.enabled = enabled
        self._now = clock.now
        self._operations: dict[str, DurationSketch] = {}
        self._lock = threading.RLock()  # a signal handler may time something while its thread is in here
        # A context variable is the fastest way to something that belongs to the thread.
        self._open: contextvars.ContextVar[_OpenTimers] = contextvars.ContextVar("trackside_open_timers")
        self._threads: list[weakref.ref[_OpenTimers]] = []
        """The open starts of each living thread."""

    def start_timer(self, operation_name: str) -> float:
        """Start to time an operation.

        Args:
            operation_name: What to call it.

        Returns:
            The start time, to be given to `end_timer`.
        """
        if not self.enabled:
            return math.nan
        now = self._now
        start = now()
        try:
            self._open.get().append(start)
        except LookupError:
            self._new_thread().append(start)
        return start

    def end_timer(self, operation_name: str, start_time: float | None = None) -> None:
        """End what `start_timer` started, on the same thread or another.

        Args:
            operation_name: What it was called.
            start_time: What `start_timer` returned.

        Raises:
            ConfigError: There is no start time, or nothing was started then, or the name is not a string.
        """
        if not self.enabled:
            if start_time is not None and start_time == start_time:  # not NaN: it was started while the profiler was on
                self.cancel_timer(start_time)
            return
        now = self._now
        end = now()
        try:
            operation = self._operations[operation_name]
            opened = self._open.get()
            last = opened.pop()
        except (LookupError, TypeError):
            self.end_timer_at(operation_name, start_time, end)
            return
        if last is not start_time or opened:
            if last == start_time:
                self._record_among_others(operation, last, end, opened)
            else:
                opened.append(last)
                self.end_timer_at(operation_name, start_time, end)
            return
        pending = operation.pending
        pending.append(end - last)
        if len(pending) >= MAX_PENDING:
            operation.fold()

    def timed(self, operation_name: str, function: Callable[[], Result]) -> Callable[[], Result]:
        """A function that is timed whenever it is called, also if it raises; an iterator that has ended is not timed.

        It does what `start_timer` and `end_timer` do, in half of their time: everything is in reach.

        Args:
            operation_name: What to call it.
            function: Called without arguments.
        """
        now, get_open, operations = self._now, self._open.get, self._operations

        def call() -> Result:
            if not self.enabled:
                return function()
            try:
                opened = get_open()
            except LookupError:
                opened = self._new_thread()
            start = now()
            opened.append(start)
            try:
                result = function()
            except StopIteration:
                self.cancel_timer(start)
                raise
            except BaseException:
                self.end_timer(operation_name, start)
                raise
            end = now()
            if not self.enabled:
                self.cancel_timer(start)
            elif len(opened) == 1 and opened[0] is start and operation_name in operations:
                opened.pop()
                operation = operations[operation_name]
                pending = operation.pending
                pending.append(end - start)
                if len(pending) >= MAX_PENDING:
                    operation.fold()
            else:
                self.end_timer_at(operation_name, start, end)
            return result

        return call

    def time_together(self, operation_name: str, function: Callable[[], list[Result]]) -> list[Result]:
        """Call a function that makes several things, each of which counts as an operation of the same length.

        Args:
            operation_name: What to call the operation.
            function: Makes a list of them. If it raises, nothing is counted.
        """
        if not self.enabled:
            return function()
        start = self.start_timer(operation_name)
        try:
            made = function()
        except BaseException:
            self.cancel_timer(start)
            raise
        if made:
            self.end_timer_at(operation_name, start, self._now(), len(made))
        else:
            self.cancel_timer(start)
        return made

    def time(self, operation_name: str) -> "Span":
        """A context manager that times its block, even if it raises.

        ```python
        with profiler.time("augmentation"):
            batch = augment(batch)
        ```
        """
        if not self.enabled:
            return OFF
        span = Span()  # without an __init__, which would take longer than everything else here
        span.timers = self
        span.name = operation_name
        return span

    def operation(self, operation_name: str) -> DurationSketch:
        """The records of an operation; a new one is registered.

        Raises:
            ConfigError: The name is not a string, or empty.
        """
        if not isinstance(operation_name, str) or not operation_name:
            raise ConfigError(f"operation_name: expected a name such as 'forward'; got {operation_name!r}")
        with self._lock:
            return self._operations.get(operation_name) or self._add_operation(operation_name)

    def cancel_timer(self, start_time: float) -> None:
        """Drop a start: what it timed turned out to be something else, such as a trace by JAX."""
        opened = self._open.get(None)
        if opened is not None:
            with self._lock:
                closed, position = _take_out(opened, start_time) or (start_time, 0)
                if type(closed) is _EnclosingStart and position:  # what was inside is now inside of the enclosing timer
                    around = _mark_around(opened, position - 1)
                    around.inside_s += closed.inside_s
                    around.until_s = closed.until_s

    def end_timer_at(self, name: str, start_time: float | None, end_time: float, count: int = 1) -> None:
        """End a timer at an earlier moment, or one that is not the last that this thread has started.

        Args:
            name: What it was called.
            start_time: What `start_timer` returned.
            end_time: When it ended, on the profiler's clock.
            count: As how many operations it counts, which took equally long.

        Raises:
            ConfigError: There is no start time, or nothing was started then, or the name is not a string.
        """
        if isinstance(start_time, bool) or not isinstance(start_time, int | float):
            raise ConfigError(
                f"end_timer({name!r}): start_time is {start_time!r}. Give it what start_timer({name!r}) returned."
            )
        if math.isnan(start_time):
            return  # it was started while the profiler was off
        try:
            operation = self._operations[name]
        except (LookupError, TypeError):
            operation = self.operation(name)
        opened = self._open.get(None)
        with self._lock:  # another thread may be ending what was started in this one
            if opened is not None and (taken := _take_out(opened, start_time)) is not None:
                closed, position = taken
                self._record_among_others(operation, closed, end_time, opened, position - 1, count)
                return
        if not self._close_elsewhere(start_time):
            raise ConfigError(
                f"end_timer({name!r}): nothing was started at start_time={start_time!r}, or it was ended before. Call "
                f"start_timer({name!r}) each time, and give end_timer what it returns."
            )
        operation.add_many((end_time - start_time) / count, count)

    def _record_among_others(
        self,
        operation: DurationSketch,
        closed: float,
        end_s: float,
        opened: _OpenTimers,
        position: int | None = None,
        count: int = 1,
    ) -> None:
        """Record an operation that ended inside of another one, or had others inside.

        Args:
            operation: What has ended.
            closed: Its start, which is no longer among the open ones.
            end_s: When it ended.
            opened: The starts that are open in the thread.
            position: Which of them encloses it, -1 for none; the last if not given.
            count: As how many operations it counts.
        """
        operation.add_many((end_s - closed) / count, count)
        if type(closed) is _EnclosingStart:
            operation.nested.append(closed.inside_s)
        with self._lock:  # another thread may be ending what was started in this one
            position = len(opened) - 1 if position is None else position
            if position < 0:
                return
            around = _mark_around(opened, position)
            around.inside_s += max(end_s - max(closed, around.until_s), 0.0)
            around.until_s = end_s

    def _new_thread(self) -> _OpenTimers:
        opened = _OpenTimers(maxlen=_MAX_OPEN)
        self._open.set(opened)
        with self._lock:
            self._threads = [thread for thread in self._threads if thread() is not None]
            self._threads.append(weakref.ref(opened))
        return opened

    def _close_elsewhere(self, start_time: float) -> bool:
        """Remove a start that another thread has made. What it is nested in there is not known."""
        threads: list[_OpenTimers] = []
        for _ in range(_NUM_TRIES):
            with self._lock:
                threads = [opened for thread in self._threads if (opened := thread()) is not None]
                for opened in threads:
                    with contextlib.suppress(ValueError):
                        opened.remove(start_time)  # in one operation: the other thread keeps running
                        return True
            time.sleep(1e-4)  # the other thread may have taken it out to look at it
        return any(len(opened) == _MAX_OPEN for opened in threads)  # it may be among those that were forgotten

    def _add_operation(self, name: str) -> DurationSketch:
        if len(self._operations) < MAX_OPERATIONS:
            return self._operations.setdefault(name, DurationSketch())
        if OTHER_OPERATIONS not in self._operations:
            LOGGER.warning(
                "More than %d operations are timed; %r and further ones are counted as %r. Use few names, without "
                "numbers in them.",
                MAX_OPERATIONS,
                name,
                OTHER_OPERATIONS,
            )
        return self._operations.setdefault(OTHER_OPERATIONS, DurationSketch())


def _mark_around(opened: _OpenTimers, position: int) -> _EnclosingStart:
    """Turn an open start into one that has other operations inside, if it is not one yet."""
    around = opened[position]
    if type(around) is not _EnclosingStart:
        opened[position] = around = _EnclosingStart(around)
        around.inside_s, around.until_s = 0.0, around
    return around


def _take_out(opened: _OpenTimers, start_time: float) -> tuple[float, int] | None:
    """Remove the innermost open start of a given time; return it, and where it was."""
    for position in range(len(opened) - 1, -1, -1):
        if opened[position] == start_time:
            closed = opened[position]
            del opened[position]
            return closed, position
    return None


class Span:
    """Times a block, even if it raises. Made by `HostTimers.time`, one for each block."""

    __slots__ = ("name", "opened", "start_s", "timers")

    timers: HostTimers
    name: str
    opened: _OpenTimers
    start_s: float

    def __enter__(self) -> None:
        timers = self.timers
        try:
            self.opened = opened = timers._open.get()
        except LookupError:
            self.opened = opened = timers._new_thread()
        now = timers._now
        self.start_s = start = now()
        opened.append(start)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # What `end_timer` does, without the call.
        timers, opened, start = self.timers, self.opened, self.start_s
        now = timers._now
        seconds = now() - start
        try:
            operation = timers._operations[self.name]
            last = opened.pop()
        except (LookupError, TypeError):
            timers.end_timer_at(self.name, start, start + seconds)
            return
        if last is not start or opened:
            if last == start:
                timers._record_among_others(operation, last, start + seconds, opened)
            else:
                opened.append(last)
                timers.end_timer_at(self.name, start, start + seconds)
            return
        pending = operation.pending
        pending.append(seconds)
        if len(pending) >= MAX_PENDING:
            operation.fold()


class _NoSpan:
    """Times nothing, with built-in functions that accept anything and do nothing: Python functions take longer."""

    __slots__ = ()
    __enter__ = staticmethod("".format)
    __exit__ = staticmethod("".format)


OFF = cast(Span, _NoSpan())
"""The span of timers that are switched off; it has no state, so one is enough."""
