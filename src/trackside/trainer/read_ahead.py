"""Reads a loader ahead on a thread of its own, within bounds, so that batches are made while the device computes.

One thread reads one pass, and nobody else reads it meanwhile. With each batch it takes down where the loader is, so
that the position to save is that of the batch that was taken last, however far the thread has read. What comes up
while it reads takes its turn among the batches: the loader's end, or an error.
"""

import contextvars
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from numbers import Integral
from typing import Any, NamedTuple, Self

import jax

from trackside.errors import ConfigError
from trackside.trainer.buffer_guard import AheadGuard

LOGGER = logging.getLogger(__name__)

THREAD_NAME = "trackside-prefetch"
DEFAULT_MAX_BYTES = 1 << 30
STOP_TIMEOUT_S = 2.0
"""How long the end of a training waits for a loader that is in the middle of a batch."""

_NOT_READ = object()


@dataclass(frozen=True)
class AheadPlan:
    """How far to read ahead."""

    num_batches: int = 0
    """How many batches at most; 0 reads each when it is needed."""
    max_bytes: int = DEFAULT_MAX_BYTES
    """How large they may be together; one may always be read."""
    send: Callable[[Any], Any] | None = None
    """Brings a batch on its way to the device."""


NOT_AHEAD = AheadPlan()


def check_ahead(name: str, value: Any, least: int, fix: str) -> None:
    """Raise if a bound of reading ahead makes no sense.

    Args:
        name: What the user calls it.
        value: What the user gave.
        least: The smallest that makes sense.
        fix: What to do instead.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}: expected a whole number of at least {least}, got {value!r}; {fix}")


class _Kind(Enum):
    BATCH, END, FAILURE = range(3)


class _Item(NamedTuple):
    kind: _Kind
    value: Any
    """The batch, or the error."""
    position: Any
    """Where the loader is after it; what `_Unknown` holds if it could not say."""
    num_bytes: int = 0


class _Unknown(NamedTuple):
    """A position that the loader failed to give, which matters only to those who ask for it."""

    error: Exception


class _Source:
    """The loader, as the thread reads it."""

    def __init__(
        self,
        iterator: Iterator,
        get_position: Callable[[], Any] | None,
        guard: AheadGuard,
        send: Callable[[Any], Any] | None,
    ):
        self._iterator = iterator
        self._get_position = get_position
        self._guard = guard
        self._send = send

    def position(self) -> Any:
        if self._get_position is None:
            return None
        try:
            return self._get_position()
        except Exception as error:
            return _Unknown(error)

    def read(self) -> _Item:
        """The next batch, ready to be kept until it is used; or what came up."""
        try:
            batch = next(self._iterator)
            position = self.position()  # first of all: afterwards, others may look at the loader
            batch = self._guard.protect(batch)
            if self._send is not None:
                batch = self._send(batch)
        except StopIteration:
            return _Item(_Kind.END, None, self.position())
        except BaseException as error:
            return _Item(_Kind.FAILURE, error, self.position())
        return _Item(_Kind.BATCH, batch, position, sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(batch)))

    def skip(self, is_last: bool) -> _Item:
        """The next batch for nobody; only the last of them has a position."""
        try:
            next(self._iterator)
        except StopIteration:
            return _Item(_Kind.END, None, self.position())
        except BaseException as error:
            return _Item(_Kind.FAILURE, error, self.position())
        return _Item(_Kind.BATCH, None, self.position() if is_last else None)


class _Shelf:
    """What the thread has read and nobody has taken, and what it may do. It knows nobody, so that all may be dropped.

    Whatever is in it is looked at and changed only by those who hold `changed`.
    """

    def __init__(self, source: _Source, max_batches: int, max_bytes: int):
        self.changed = threading.Condition(threading.Lock())
        self.items: deque[_Item] = deque()
        self.num_left: float = 0
        """How many batches are still to be taken: no more than these are read ahead."""
        self.num_to_skip = 0
        self.skipped: _Item | None = None
        self.is_waited_for = False
        self.only_on_demand = False
        self.must_end = False
        self.thread: threading.Thread | None = None
        self._source = source
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._num_bytes = self._largest = 0

    def may_read(self) -> bool:
        num_held = len(self.items)
        if num_held == 0 and (self.is_waited_for or self.num_to_skip):
            return True
        if self.only_on_demand or num_held >= min(self._max_batches, self.num_left):
            return False
        if num_held == 0:
            return True
        is_stopped = self.items[-1].kind is not _Kind.BATCH  # by its end, or by an error that is not raised yet
        return not is_stopped and self._num_bytes + self._largest <= self._max_bytes

    def put(self, item: _Item) -> None:
        self.items.append(item)
        self._num_bytes += item.num_bytes
        self._largest = max(self._largest, item.num_bytes)
        self.changed.notify_all()

    def pop(self) -> None:
        self._num_bytes -= self.items.popleft().num_bytes
        self.num_left -= 1
        self.changed.notify_all()

    def drop(self) -> None:
        self.items.clear()
        self._num_bytes = 0

    def run(self) -> None:
        """What the thread does: read while it may, wait while it may not, end when it must or with the loader."""
        while True:
            with self.changed:
                while not self.must_end and not self.may_read():
                    self.changed.wait()
                if self.must_end:
                    self._leave()
                    return
                num_to_skip = self.num_to_skip
            item = self._source.skip(num_to_skip == 1) if num_to_skip else self._source.read()
            with self.changed:
                if num_to_skip and item.kind is _Kind.BATCH:
                    self.num_to_skip = max(self.num_to_skip - 1, 0)
                    self.skipped = item
                    if not self.num_to_skip:
                        self.changed.notify_all()
                    continue
                self.put(item)
                if item.kind is not _Kind.BATCH:
                    self._leave()
                    return

    def _leave(self) -> None:
        self.thread = None
        self.changed.notify_all()

    def start(self) -> None:
        """Have a thread."""
        self.must_end = False
        if self.thread is None:
            # It sees what the thread sees that trains, such as numpy's error state.
            run = contextvars.copy_context().run
            self.thread = threading.Thread(target=run, args=(self.run,), name=THREAD_NAME, daemon=True)
            self.thread.start()
        self.changed.notify_all()

    def end(self) -> None:
        """Let the thread end, with the batch that it is at."""
        with self.changed:
            self.must_end = True
            self.changed.notify_all()


class ReadAhead:
    """The batches of one pass over a loader, in order, read ahead on a thread.

    The thread starts with the first use, and ends with the pass, with `stop`, and when this object is dropped.

    Args:
        iterator: The batches.
        get_position: Gives the loader's position, as something that the loader does not change afterwards; None for a
            loader without one.
        guard: Knows which batches have to be copied to be kept.
        plan: How far to read.
        only_on_demand: Whether each batch is read when it is asked for, since the loader follows the training.
    """

    def __init__(
        self,
        iterator: Iterator,
        get_position: Callable[[], Any] | None,
        guard: AheadGuard,
        plan: AheadPlan,
        only_on_demand: bool = False,
    ):
        self._source = _Source(iterator, get_position, guard, plan.send)
        self._shelf = _Shelf(self._source, plan.num_batches, plan.max_bytes)
        self._shelf.only_on_demand = only_on_demand
        self._position: Any = _NOT_READ
        weakref.finalize(self, self._shelf.end)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The next batch, which is waited for if need be."""
        shelf = self._shelf
        with shelf.changed:
            if not shelf.items:
                self._wait_for_item()
            item = shelf.items[0]
            if item.kind is not _Kind.END:  # which stays, for those who ask again
                shelf.pop()
        if item.kind is _Kind.FAILURE:
            raise item.value
        self._position = item.position
        if item.kind is _Kind.END:
            raise StopIteration
        return item.value

    def is_over(self) -> bool:
        """Whether there are no more batches. The next one stays where it is."""
        shelf = self._shelf
        with shelf.changed:
            if not shelf.items:
                self._wait_for_item()
            item = shelf.items[0]
            if item.kind is _Kind.FAILURE:
                shelf.pop()
        if item.kind is _Kind.FAILURE:
            raise item.value
        if item.kind is _Kind.END:
            self._position = item.position
        return item.kind is _Kind.END

    def _wait_for_item(self) -> None:
        shelf = self._shelf
        shelf.is_waited_for = True
        self._start()
        try:
            while not shelf.items:
                shelf.changed.wait()
        finally:
            shelf.is_waited_for = False

    def _start(self) -> None:
        if self._position is _NOT_READ:
            self._position = self._source.position()
        self._shelf.start()

    def skip(self, number: int) -> int:
        """Read past batches, faster than by taking them.

        Returns:
            How many there were: fewer at the loader's end.
        """
        num_skipped, shelf = 0, self._shelf
        while num_skipped < number and self.has_unread:
            next(self)
            num_skipped += 1
        with shelf.changed:
            if not shelf.items and num_skipped < number:
                num_skipped += self._skip_unread(number - num_skipped)
        if num_skipped < number:
            self.is_over()  # it is, unless it has failed
        return num_skipped

    def _skip_unread(self, number: int) -> int:
        shelf = self._shelf
        shelf.num_to_skip, shelf.skipped = number, None
        self._start()
        try:
            while shelf.num_to_skip and not shelf.items:
                shelf.changed.wait()
        finally:
            num_skipped, shelf.num_to_skip = number - shelf.num_to_skip, 0
        if shelf.skipped is not None and num_skipped == number:
            self._position = shelf.skipped.position
        return num_skipped

    def allow(self, number: float) -> None:
        """Begin to read, unless that has begun.

        Args:
            number: How many batches are still to be taken. No more than these are read without being asked for.
        """
        shelf = self._shelf
        with shelf.changed:
            shelf.num_left = number
            if not shelf.only_on_demand and shelf.may_read():
                self._start()

    def note_look(self, thread: int) -> bool:
        """Somebody looks at the training. If that is the loader, its next batches are made when they are asked for.

        Args:
            thread: The thread that looks.

        Returns:
            Whether it was the loader.
        """
        shelf, reader = self._shelf, self._shelf.thread
        if reader is None or reader.ident != thread:
            return False
        with shelf.changed:
            was_known, shelf.only_on_demand = shelf.only_on_demand, True
            num_ahead = len(shelf.items)
        if not was_known:
            late = f"; the batch that it is making saw the trainer about {num_ahead} steps early" if num_ahead else ""
            LOGGER.warning(
                "train_loader looks at the trainer while it makes a batch, so it is not read ahead: from here on each "
                "batch is made when the step before it was made%s. Without prefetch_batches that is so from the start",
                late,
            )
        return True

    def position(self) -> Any:
        """Where the loader is after the batch that was taken last; None if it cannot say."""
        position = self._source.position() if self._position is _NOT_READ else self._position
        if isinstance(position, _Unknown):
            raise position.error
        return position

    @property
    def has_unread(self) -> bool:
        """Whether batches were read that nobody has taken."""
        with self._shelf.changed:
            return any(item.kind is _Kind.BATCH for item in self._shelf.items)

    def drop_unread(self) -> None:
        """Forget what nobody has taken. The thread must have ended."""
        with self._shelf.changed:
            self._shelf.drop()

    def stop(self, timeout_s: float | None = None) -> None:
        """End the thread. What it has read stays, and it starts again when more is asked for.

        Args:
            timeout_s: How long to wait for a batch that is being made; None for as long as it takes. The thread ends
                with it in any case.
        """
        self._shelf.end()
        thread = self._shelf.thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout_s)
        if thread.is_alive():
            LOGGER.info("the loader is still making a batch; the thread that reads it ends with that batch")
