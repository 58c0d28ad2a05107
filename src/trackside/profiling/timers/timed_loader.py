"""A loader that is timed: how long the loop waits for each batch.

The user's object is neither changed nor copied. A proxy forwards everything to it, and times `next` on its iterators.
"""

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any

from trackside.errors import DataError
from trackside.profiling.timers.training_profiler import TrainingProfiler, get_profiler

LOGGER = logging.getLogger(__name__)

DATA_BATCH_PRODUCTION = "data_batch_production"
"""What the operation is called by default."""

_OWN = ("_loader", "_name", "_profiler")


def profile_data_loader(
    data_loader: Any, operation_name: str = DATA_BATCH_PRODUCTION, profiler: TrainingProfiler | None = None
) -> Any:
    """Wrap a loader so that each of its batches is timed.

    Args:
        data_loader: Any iterable: a list, a generator, a grain or PyTorch loader. It is not changed.
        operation_name: What to call the operation.
        profiler: Measures it; None for the process's own.

    Returns:
        A loader with the length, the attributes and the state methods of the one given; the one given itself if it is
        timed already, as the same operation by the same profiler.

    Raises:
        DataError: It cannot be iterated over.
    """
    if not (hasattr(data_loader, "__iter__") or hasattr(data_loader, "__getitem__")):
        raise DataError(
            f"data_loader: {type(data_loader).__name__} cannot be iterated over. Give an iterable of batches, such as "
            "a list, a generator or a loader."
        )
    timers = get_profiler() if profiler is None else profiler
    if _is_timed(data_loader, operation_name, timers):
        return data_loader
    timers.operation(operation_name)
    timers.counts_steps_by(operation_name)
    has_length = hasattr(data_loader, "__len__")
    if hasattr(data_loader, "__next__"):
        return (_SizedIterator if has_length else TimedIterator)(data_loader, operation_name, timers)
    if hasattr(data_loader, "__getitem__"):
        return (_SizedSequence if has_length else _Sequence)(data_loader, operation_name, timers)
    return (_SizedLoader if has_length else TimedLoader)(data_loader, operation_name, timers)


def _is_timed(loader: Any, name: str, profiler: TrainingProfiler) -> bool:
    """Whether a loader is timed already, as this operation by this profiler: a second wrapper would count it twice."""
    is_wrapper = isinstance(loader, TimedLoader | TimedIterator)
    return is_wrapper and loader._name == name and loader._profiler is profiler


def without_timers(loader: Any) -> Any:
    """The loader that is timed, or the one given if it is not."""
    while isinstance(loader, TimedLoader | TimedIterator):
        loader = loader._loader if isinstance(loader, TimedLoader) else loader._iterator
    return loader


class TimedLoader:
    """A loader that is timed. Made by `profile_data_loader`."""

    def __init__(self, loader: Any, name: str, profiler: TrainingProfiler):
        object.__setattr__(self, "_loader", loader)
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_profiler", profiler)

    def __iter__(self) -> Iterator[Any]:
        return TimedIterator(iter(self._loader), self._name, self._profiler)

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _OWN:  # not set yet, as while being copied
            raise AttributeError(attribute)
        return getattr(self._loader, attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(self._loader, attribute, value)

    def __repr__(self) -> str:
        return f"<{self._loader!r}, profiled>"


class TimedIterator:
    """An iterator that is timed, with the state methods of the one given."""

    def __init__(self, iterator: Iterator[Any], name: str, profiler: TrainingProfiler):
        self._iterator = iterator
        self._advance = profiler.timed(name, iterator.__next__)
        self._name = name
        self._profiler = profiler
        self._is_empty = True

    def __iter__(self) -> "TimedIterator":
        self._is_empty = True  # until this loop has received a batch
        return self

    def __next__(self) -> Any:
        try:
            batch = self._advance()
        except StopIteration:
            self._warn_if_empty()
            raise
        self._is_empty = False
        return batch

    def take_some(self, most: int) -> list[Any]:
        """The next batches of an iterator that runs no code to make them, such as a list's: fewer at its end."""
        taken = self._profiler.time_together(self._name, lambda: list(islice(self._iterator, most)))
        if len(taken) < most:
            self._warn_if_empty()
        self._is_empty = self._is_empty and not taken
        return taken

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "_iterator":  # not set yet, as while being copied
            raise AttributeError(attribute)
        return getattr(self._iterator, attribute)

    def _warn_if_empty(self) -> None:
        if self._is_empty:
            self._is_empty = False
            LOGGER.warning(
                "%s: the loader gave no batch. It is empty, or it is a generator or iterator that was used up before; "
                "give a loader that can be iterated over again.",
                self._name,
            )


# Python looks for these methods in the class: a loader without a length must not seem to have one.


class _SizedLoader(TimedLoader):
    def __len__(self) -> int:
        return len(self._loader)


class _Sequence(TimedLoader):
    def __getitem__(self, index: Any) -> Any:
        return self._loader[index]


class _SizedSequence(_SizedLoader, _Sequence):
    pass


class _SizedIterator(TimedIterator):
    def __len__(self) -> int:
        return len(self._iterator)  # pyright: ignore[reportArgumentType]
