"""A loader that is measured has all that the user's own has, and so do its iterators."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.measured_run.own_loops import open_run_of
from trackside.errors import DataError


class Plain:
    """An iterator that can do nothing else."""

    def __init__(self) -> None:
        self._left = 3

    def __iter__(self) -> "Plain":
        return self

    def __next__(self) -> int:
        if not self._left:
            raise StopIteration
        self._left -= 1
        return self._left


class Stateful(Plain):
    """One that knows its position."""

    def get_state(self) -> dict[str, int]:
        return {"left": self._left}


class Wrapped(Plain):
    """One that gets its methods from another."""

    def __getattr__(self, name: str) -> Any:
        if name != "get_state":
            raise AttributeError(name)
        return lambda: {"left": self._left}


class Loader:
    """Makes an iterator for each pass."""

    batch_size = 7

    def __init__(self, kind: type[Plain]) -> None:
        self._kind = kind

    def __iter__(self) -> Iterator[int]:
        return self._kind()


@pytest.mark.parametrize("kind", [Stateful, Wrapped])
def test_methods_of_iterators_are_there(kind: type[Plain]) -> None:
    """Those of its class, and those that it gets from elsewhere, for a loader and for an iterator itself."""
    with open_run_of() as run:
        for iterator in (iter(run.batches(Loader(kind))), run.batches(kind())):
            next(iterator)
            assert iterator.get_state() == {"left": 2}
            assert list(iterator) == [1, 0]


def test_an_iterator_without_methods_has_none() -> None:
    """Who asks whether it has a state is told the truth."""
    with open_run_of() as run:
        iterator = iter(run.batches(Loader(Plain)))
        assert not hasattr(iterator, "get_state")
        assert list(iterator) == [2, 1, 0]


def test_attributes_of_loaders_are_there() -> None:
    """Such as the size of its batches; and it may be copied."""
    with open_run_of() as run:
        loader = run.batches(Loader(Plain))
        assert loader.batch_size == copy.copy(loader).batch_size == 7


class Restarting(Plain):
    """A loader that is its own iterator, and begins again with each loop."""

    def __iter__(self) -> "Restarting":
        self._left = 3
        return self


class Giving(Plain):
    """An iterator that gives another one to each loop."""

    def __iter__(self) -> Plain:  # type: ignore[override]
        return Plain()


@pytest.mark.parametrize(("kind", "num_batches"), [(Plain, [3, 0]), (Restarting, [3, 3]), (Giving, [3, 3])])
def test_loops_over_an_iterator_begin_where_they_would(kind: type[Plain], num_batches: list[int]) -> None:
    """A loader that is its own iterator may begin again, and does, with an epoch for each loop."""
    with open_run_of() as run:
        loader = run.batches(kind())
        assert [len(list(loader)) for _ in range(2)] == num_batches
        assert run._book.epoch == 2
        loader = run.batches(kind())
        assert len([next(iter(loader)), *loader]) == len([next(iter(own := kind())), *own])


def test_a_loader_may_have_attributes_that_fail() -> None:
    """What Python does not ask of a loader is not asked."""

    class Failing(Loader):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    with open_run_of() as run:
        assert list(run.batches(Failing(Plain))) == [2, 1, 0]


def test_attributes_that_are_set_are_those_of_the_loader() -> None:
    """A loop that tells its loader the epoch gets the batches of that epoch."""

    class Shuffled:
        epoch = 0

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.epoch, self.epoch + 3))

    with open_run_of() as run:
        own = Shuffled()
        loader = run.batches(own)
        for epoch in range(3):
            loader.epoch = epoch
            assert list(loader) == [epoch, epoch + 1, epoch + 2]
        iterator = run.batches(Stateful())
        iterator._left = 1
        assert list(iterator) == [0]
    assert own.epoch == 2


def test_a_generator_can_be_closed() -> None:
    """Its own methods work through the measured one."""
    ended = []

    def batches() -> Iterator[int]:
        try:
            yield from range(5)
        finally:
            ended.append(True)

    with open_run_of() as run:
        iterator = run.batches(batches())
        next(iterator)
        iterator.close()
    assert ended == [True]


def test_some_batches_of_a_loader_are_measured() -> None:
    """A loader that can be indexed still can; some of its batches are a loader again."""
    with open_run_of() as run:
        batches = run.batches([1, 2, 3])
        assert batches[0] == 1
        assert type(batches[1:]) is type(batches)
        assert list(batches[1:]) == [2, 3]
        with pytest.raises(TypeError, match="'set' object is not subscriptable"):
            run.batches({1, 2})[0]


def test_a_list_of_batches_can_be_shuffled() -> None:
    """A loop may change the order in place, and gets its batches in that order."""
    with open_run_of() as run:
        own = list(range(20))
        batches = run.batches(own)
        random.Random(0).shuffle(batches)
        assert list(batches) == own != list(range(20))


def test_a_function_has_to_be_called() -> None:
    """A generator function is no generator."""

    def read() -> Iterator[int]:
        yield 1

    with open_run_of() as run, pytest.raises(DataError, match="got the function read; call it"):
        run.batches(read)
