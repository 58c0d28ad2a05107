"""Batches that are read ahead on a thread: bounds, order, errors, copies, and how the thread ends."""

import gc
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trackside.trainer.buffer_guard import AheadGuard
from trackside.trainer.read_ahead import THREAD_NAME, AheadPlan, ReadAhead

FOREVER = float("inf")


def read_ahead(iterator: Iterator, num_batches: int = 3, get_position: Any = None, **plan: Any) -> ReadAhead:
    return ReadAhead(iterator, get_position, AheadGuard(iterator, num_batches + 2), AheadPlan(num_batches, **plan))


def readers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == THREAD_NAME]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert is_so()


class Counting:
    """Numbers as batches of 8 bytes, and how far it is ahead of what was taken, the batch that it makes included."""

    def __init__(self, num_batches: int) -> None:
        self.num_batches, self.num_read, self.num_taken, self.most_ahead = num_batches, 0, 0, 0

    def __iter__(self) -> Iterator[np.ndarray]:
        return self

    def __next__(self) -> np.ndarray:
        if self.num_read == self.num_batches:
            raise StopIteration
        self.num_read += 1
        self.most_ahead = max(self.most_ahead, self.num_read - self.num_taken)
        return np.full(1, self.num_read, np.int64)


@pytest.mark.parametrize(
    ("num_batches", "max_bytes", "expected"),
    [(1, 1 << 30, 1), (4, 1 << 30, 4), (4, 16, 2), (4, 23, 2), (4, 1, 1)],
)
def test_bounds(num_batches: int, max_bytes: int, expected: int) -> None:
    """No more is read ahead than batches and bytes allow, and as much as they allow; one batch in any case."""
    loader = Counting(50)
    ahead = read_ahead(loader, num_batches, max_bytes=max_bytes)
    ahead.allow(FOREVER)
    wait_until(lambda: loader.num_read == expected)
    for index, batch in enumerate(ahead):
        assert batch.item() == index + 1
        loader.num_taken += 1
    assert loader.num_taken == 50
    assert loader.most_ahead <= expected + 1  # taken, and not counted yet


def test_no_more_is_read_than_will_be_taken() -> None:
    """Reading stops where the training or the pass ends, and what is asked for beyond that is read all the same."""
    loader = Counting(8)
    ahead = read_ahead(loader)
    ahead.allow(4)
    taken = [next(ahead).item() for _ in range(4)]
    wait_until(lambda: not ahead.has_unread)
    assert (taken, loader.num_read) == ([1, 2, 3, 4], 4)
    assert not ahead.is_over()
    assert [one.item() for one in ahead] == [5, 6, 7, 8]
    assert ahead.is_over()


def test_an_end_is_heard_again() -> None:
    """A loader that begins again after its end is not asked again within a pass."""
    loader = iter([1, 2])
    ahead = read_ahead(loader)
    assert list(ahead) == [1, 2]
    ahead.allow(FOREVER)
    assert list(ahead) == []


def test_each_batch_has_its_position() -> None:
    """The position is that of the batch that was taken last, also of a loader that is far ahead of it."""
    loader = Counting(9)
    ahead = read_ahead(loader, 5, get_position=lambda: loader.num_read)
    assert ahead.position() == 0
    ahead.allow(FOREVER)
    wait_until(lambda: loader.num_read == 5)
    assert ahead.position() == 0
    for index, _ in enumerate(ahead):
        assert not ahead.is_over() or index == 8
        assert ahead.position() == index + 1


def test_a_position_that_fails_matters_to_those_who_ask() -> None:
    """A loader that cannot say where it is can be read, and its error comes where the position is needed."""

    def fail() -> Any:
        raise KeyError("no such place")

    ahead = read_ahead(iter([1, 2]), get_position=fail)
    assert list(ahead) == [1, 2]
    with pytest.raises(KeyError, match="no such place"):
        ahead.position()


@pytest.mark.parametrize("number", [0, 1, 5, 9])
@pytest.mark.parametrize("is_looked_at", [False, True])
def test_skipping(number: int, is_looked_at: bool) -> None:
    """Batches are skipped up to the end, also one that was looked at, and the position follows."""
    loader = Counting(6)
    ahead = read_ahead(loader, get_position=lambda: loader.num_read)
    assert not is_looked_at or not ahead.is_over()
    assert ahead.skip(number) == min(number, 6)
    assert ahead.position() == min(number, 6)
    assert [one.item() for one in ahead] == list(range(number + 1, 7))


class LoaderError(Exception):
    pass


def test_an_error_takes_its_turn() -> None:
    """An error comes after the batches before it, as the same object, with the lines of the loader."""
    error = LoaderError("lost")

    def batches_of_a_broken_loader() -> Iterator[int]:
        yield from (1, 2)
        raise error

    ahead = read_ahead(batches_of_a_broken_loader())
    ahead.allow(FOREVER)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(LoaderError) as caught:
        next(ahead)
    assert caught.value is error
    assert "batches_of_a_broken_loader" in "".join(traceback.format_tb(error.__traceback__))
    assert list(ahead) == []  # as a generator that has failed


def refilled() -> Iterator[np.ndarray]:
    buffer = np.zeros(4)
    for index in range(20):
        buffer[:] = index
        yield buffer


def refilled_in_turn() -> Iterator[np.ndarray]:
    buffers = [np.zeros(4) for _ in range(3)]
    for index in range(20):
        buffers[index % 3][:] = index
        yield buffers[index % 3]


def given_up() -> Iterator[jax.Array]:
    following = jax.jit(lambda array: array + 1, donate_argnums=0)
    array = jnp.full(4, -1.0)
    for _ in range(20):
        array = following(array)
        yield array


@pytest.mark.parametrize("make", [refilled, refilled_in_turn, given_up])
def test_batches_whose_memory_is_used_again(make: Callable[[], Iterator]) -> None:
    """A batch is as the loader gave it, whatever the loader does with its memory afterwards."""
    ahead = read_ahead(make())
    ahead.allow(FOREVER)
    assert [float(batch[0]) for batch in ahead] == list(range(20))


def test_batches_that_are_left_alone_are_not_copied() -> None:
    """When a loader has shown that it leaves its arrays alone, they are passed on as they are."""
    arrays = [np.full(4, index) for index in range(20)]
    taken = list(read_ahead(iter(arrays)))
    assert [one is other for one, other in zip(taken, arrays, strict=True)] == [False] * 6 + [True] * 14
    listed = ReadAhead(iter(arrays), None, AheadGuard(arrays, 5), AheadPlan(3))
    assert all(one is other for one, other in zip(listed, arrays, strict=True))


def test_batches_are_sent_ahead() -> None:
    """A batch is sent on its way by the thread that reads."""
    threads = set()

    def send(batch: Any) -> Any:
        threads.add(threading.current_thread().name)
        return jax.device_put(batch)

    taken = list(read_ahead(Counting(4), send=send))
    assert [one.item() for one in taken] == [1, 2, 3, 4]
    assert all(isinstance(one, jax.Array) for one in taken)
    assert threads == {THREAD_NAME}


def test_the_thread_ends_with_the_loader() -> None:
    """It needs nobody to end it."""
    assert len(list(read_ahead(Counting(5)))) == 5
    wait_until(lambda: not readers())


def test_the_thread_ends_and_starts_again() -> None:
    """What was read before it was ended comes first."""
    loader = Counting(9)
    ahead = read_ahead(loader)
    ahead.allow(FOREVER)
    wait_until(lambda: loader.num_read == 3)
    ahead.stop()
    assert not readers()
    assert [one.item() for one in ahead] == list(range(1, 10))


def test_the_thread_ends_when_nobody_is_left() -> None:
    """Dropping the batches is enough."""
    ahead = read_ahead(Counting(9))
    ahead.allow(FOREVER)
    assert readers()
    del ahead
    gc.collect()
    wait_until(lambda: not readers())


def test_a_batch_that_never_comes_is_not_waited_for() -> None:
    """Ending the thread waits only so long for a loader that hangs, and the thread ends when that is over."""
    is_over = threading.Event()

    def hanging() -> Iterator[int]:
        yield 1
        is_over.wait(60)
        yield 2

    ahead = read_ahead(hanging())
    ahead.allow(FOREVER)
    assert next(ahead) == 1
    ahead.stop(timeout_s=0.01)
    assert readers()
    is_over.set()
    wait_until(lambda: not readers())
    assert list(ahead) == [2]
