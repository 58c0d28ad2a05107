"""A loader in a loop of the user's own: how long the loop waits for each batch, and how many examples it gets.

The user's object is neither changed nor copied. A proxy forwards everything to it, and times `next` on its iterators.
"""

from collections.abc import Callable, Iterator
from threading import get_ident
from types import FunctionType
from typing import Any, Protocol

import jax
import numpy as np

from trackside.clock import Clock
from trackside.errors import DataError
from trackside.measured_run.first_array import FirstArray, find_first_array
from trackside.measured_run.host_time import HostTime
from trackside.profiling.ledger_totals import DATA_WAIT, OTHER

_OWN = ("_loader", "_passes")
_OWN_OF_ITERATOR = (*_OWN, "_iterator", "_advance", "_is_over")


class Passes(Protocol):
    """Who hears of passes over loaders."""

    host: HostTime
    clock: Clock

    def begin_pass(self, iterator: "MeasuredIterator", loader: Any) -> None:
        """A pass begins."""
        ...

    def learn_batch(self, batch: Any) -> None:
        """The first batch has come."""
        ...

    def end_pass(self, iterator: "MeasuredIterator") -> None:
        """A pass is over: the loader has no more batches."""
        ...

    def say_once(self, message: str) -> None:
        """Warn of something, the first time that it happens."""
        ...


def measure_batches(loader: Any, passes: Passes) -> Any:
    """A loader whose batches are timed, with the length and the attributes of the one given.

    Args:
        loader: Any iterable.
        passes: Hears of its passes.

    Raises:
        DataError: It cannot be iterated over.
    """
    if isinstance(loader, MeasuredBatches | MeasuredIterator):
        if loader._passes is passes:
            passes.say_once("run.batches: this loader is wrapped already; it is measured once")
            return loader
        # By an earlier run, as in a cell of a notebook that is run again.
        loader = loader._loader if isinstance(loader, MeasuredBatches) else loader._iterator
    if isinstance(loader, type):
        raise DataError(f"run.batches: expected an iterable of batches, got the class {loader.__name__}; call it")
    if isinstance(loader, FunctionType):
        raise DataError(f"run.batches: expected an iterable of batches, got the function {loader.__name__}; call it")
    kind = type(loader)  # where Python looks for these methods; an object may have a __getattr__ that fails
    if not (hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
        raise DataError(
            f"run.batches: {type(loader).__name__} cannot be iterated over; give an iterable of batches, such as a "
            "list, a generator or a loader"
        )
    has_length = hasattr(kind, "__len__")
    if hasattr(kind, "__next__"):
        return (_SizedIterator if has_length else _kind_for(loader))(loader, passes)
    return (_SizedBatches if has_length else MeasuredBatches)(loader, passes)


def _open(loader: Any, host: HostTime) -> Iterator[Any]:
    """The iterator of a loader, which may start its workers to make it."""
    if host.depth or not host.is_own_thread:
        return iter(loader)
    before = host.enter(DATA_WAIT)
    try:
        return iter(loader)
    finally:
        host.enter(before)


class MeasuredBatches:
    """A loader that is measured. Made by `run.batches`."""

    def __init__(self, loader: Any, passes: Passes):
        self._loader = loader
        self._passes = passes

    def __iter__(self) -> Iterator[Any]:
        iterator = _open(self._loader, self._passes.host)
        return _kind_for(iterator)(iterator, self._passes, self._loader)

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _OWN:  # not set yet, as while being copied
            raise AttributeError(attribute)
        return getattr(self._loader, attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        """What a loop sets, such as the epoch that a shuffle depends on, is the loader's own."""
        if attribute in _OWN:
            super().__setattr__(attribute, value)
        else:
            setattr(self._loader, attribute, value)


class MeasuredIterator:
    """An iterator that is measured, of one that has no methods but to iterate."""

    def __init__(self, iterator: Iterator[Any], passes: Passes, loader: Any = None):
        self._iterator = iterator
        self._passes = passes
        self._loader = iterator if loader is None else loader
        self._advance = self._build_advance()
        self._is_over = False

    def __iter__(self) -> Iterator[Any]:
        """Itself, as iterators do. A loader that is its own iterator may begin again here, or give another one."""
        iterator = _open(self._iterator, self._passes.host)
        if iterator is not self._iterator:
            return _kind_for(iterator)(iterator, self._passes, self._loader)
        if self._is_over and isinstance(getattr(type(iterator), "__iter__", None), FunctionType):
            self._advance, self._is_over = self._build_advance(), False
        return self

    def __next__(self) -> Any:
        return self._advance(self)

    def tell_next(self, tell: Callable[[], None]) -> None:
        """Call a function when the next batch is asked for, before it is got; once.

        Args:
            tell: The function.
        """
        advance = self._advance

        def told(owner: MeasuredIterator) -> Any:
            owner._advance = advance
            tell()
            return advance(owner)

        self._advance = told

    def _build_advance(self) -> "Callable[[MeasuredIterator], Any]":
        """What gets the next batch, with everything in reach."""
        host, now, iterator = self._passes.host, self._passes.clock.now, self._iterator
        first_of, length_of, is_new = _not_known_yet, len, True

        # It is given its owner, and does not hold it: a pass is over as soon as nobody else does.
        def next_batch(owner: MeasuredIterator) -> Any:
            nonlocal first_of, length_of, is_new
            if host.depth or get_ident() != host.thread_id:
                return owner._next_elsewhere()
            if is_new:
                is_new = False
                owner._passes.begin_pass(owner, owner._loader)
            if host.watched is not None:
                host.note_computing()
            # Most often, a batch is all that comes between two calls: two times say it, without spans.
            if host.spans or host.part != OTHER or host.waits_s is not None or host.before is not None:
                host.end_span(host.part, now())
            else:
                host.waits_s = now()
            try:
                batch = next(iterator)
            except BaseException as error:
                host.end_span(DATA_WAIT, now())
                if isinstance(error, StopIteration):
                    owner._is_over = True
                    owner._passes.end_pass(owner)
                raise
            if host.waits_s is None or host.before is not None:
                host.end_span(DATA_WAIT, now())
            else:
                host.batch_s = now()
            try:
                host.num_samples += length_of(first_of(batch))
            except Exception:  # the first batch, or one of another form
                first_of, length_of = owner._learn(batch)
            return batch

        return next_batch

    def _next_elsewhere(self) -> Any:
        """A batch inside of a part, which has its time, or on another thread, whose time nobody keeps account of."""
        if not self._passes.host.is_own_thread:
            self._passes.say_once(
                "run.batches: batches are taken on another thread than the loop's, so waiting for them is not "
                "measured; wrap what the loop itself iterates over, as in run.batches(prefetch(loader))"
            )
        return next(self._iterator)

    def _learn(self, batch: Any) -> FirstArray:
        found, self._passes.host.stack = find_first_array(batch), first_lengths(batch)
        self._passes.learn_batch(batch)
        self._passes.host.num_samples += found.length_of(found.get(batch))
        return found


class _ForwardingIterator(MeasuredIterator):
    """With the methods of the one given, such as those of its state."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "_iterator":  # not set yet, as while being copied
            raise AttributeError(attribute)
        return getattr(self._iterator, attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        if attribute in _OWN_OF_ITERATOR:
            super().__setattr__(attribute, value)
        else:
            setattr(self._iterator, attribute, value)


def _kind_for(iterator: Any) -> type[MeasuredIterator]:
    """Forwarding only where there is something to forward: it makes every other attribute slow."""
    has_more = hasattr(type(iterator), "__getattr__") or any(not name.startswith("_") for name in dir(iterator))
    return _ForwardingIterator if has_more else MeasuredIterator


def first_lengths(batch: Any) -> tuple[int, int]:
    """The first two lengths of the first array; 0 for those that it does not have."""
    shape = next((np.shape(leaf) for leaf in jax.tree.leaves(batch) if np.ndim(leaf)), ())
    first, second, *_ = (*shape, 0, 0)
    return first, second


def _not_known_yet(batch: Any) -> Any:
    raise LookupError(f"nothing is known yet of batches such as {type(batch)}")


# Python looks for this method in the class: a loader without a length must not seem to have one.


class _SizedBatches(MeasuredBatches):
    def __len__(self) -> int:
        return len(self._loader)

    def __getitem__(self, index: Any) -> Any:
        """What the loader has there; some of its batches are measured as it is."""
        found = self._loader[index]
        return measure_batches(found, self._passes) if isinstance(index, slice) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        """As to shuffle a list."""
        self._loader[index] = value


class _SizedIterator(_ForwardingIterator):
    def __len__(self) -> int:
        return len(self._iterator)  # pyright: ignore[reportArgumentType]
