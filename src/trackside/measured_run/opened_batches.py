"""Which batches count where passes are inside of each other: what a batch of one holds may be read again by another.

In a loop over tasks, or over large pieces of a data set, a batch is opened: a pass inside goes over what it holds, and
steps get the batches of that pass. Those count, and the opened one does not. Two loaders side by side, as in `zip`,
both feed the steps, so the batches of both count.

Both begin alike: a batch of one pass has come, and another pass begins before there is a call. What comes next tells.
If the new pass is asked for a second batch, or is over, and there was a call meanwhile, it went over the batch that had
come before it. If there was no call, or the first pass is asked for its next batch sooner, they are side by side.
"""

import weakref
from collections.abc import Callable

from trackside.measured_run.call_book import CallBook
from trackside.measured_run.host_time import HostTime
from trackside.measured_run.measured_batches import MeasuredIterator


class OpenedBatches:
    """Holds back the examples of batches until it is known whether these are opened.

    Args:
        host: Counts the examples that were read since the last call.
        book: The calls.
        add_samples: Counts examples that earlier calls were given.
    """

    def __init__(self, host: HostTime, book: CallBook, add_samples: Callable[[int], None]):
        self._host = host
        self._book = book
        self._add_samples = add_samples
        self._passes: list[weakref.ref[MeasuredIterator]] = []
        """Those that have begun, and are not known to be over."""
        self._held: list[_HeldBack] = []

    def begin_pass(self, iterator: MeasuredIterator) -> None:
        """A pass begins; its first batch is not there yet."""
        host, self._passes = self._host, [one for one in self._passes if one() is not None]
        outer = self._passes[-1]() if self._passes else None
        if outer is None or not host.num_samples:
            self._passes.append(weakref.ref(iterator))
            return
        held = _HeldBack(host, self._book, self._add_samples)
        self._held = [*(one for one in self._held if one.num_samples), held]
        self._passes.append(weakref.ref(iterator, held.on_inner))
        iterator.tell_next(held.on_inner)
        outer.tell_next(held.on_outer)

    def end_pass(self, iterator: MeasuredIterator) -> None:
        """A pass has no more batches."""
        self._passes = [one for one in self._passes if one() is not iterator]

    def finish(self) -> None:
        """The run is over: count what is held back."""
        for one in self._held:
            one.on_outer()


class _HeldBack:
    """Examples that are held back, and what decides about them: whichever comes first."""

    def __init__(self, host: HostTime, book: CallBook, add_samples: Callable[[int], None]):
        self.num_samples, host.num_samples = host.num_samples, 0
        self._host = host
        self._book = book
        self._last_call = book.last
        self._add_samples = add_samples

    def on_inner(self, _: object = None) -> None:
        """The pass that has begun is asked for a second batch, or is gone."""
        num_samples, self.num_samples = self.num_samples, 0
        if self._book.last is self._last_call:
            self._host.num_samples += num_samples

    def on_outer(self) -> None:
        """The pass before it is asked for its next batch."""
        num_samples, self.num_samples = self.num_samples, 0
        if self._book.last is self._last_call:
            self._host.num_samples += num_samples
        else:
            self._add_samples(num_samples)
