"""What the processes of one training decide together.

Every process runs the same loop, and each step waits for all of them. A process that decides by what it alone can see,
such as a folder in which another one is writing, takes another turn than the others, and all wait forever. So the
first process looks and the others hear its answer, or all tell each other. With one process nothing is sent.
"""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from trackside.errors import CheckpointError, DataError

_FAILED = -2


class Processes(ABC):
    """One process of a training, and how it agrees with the others."""

    @property
    @abstractmethod
    def index(self) -> int:
        """Which process this is, from 0."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many there are."""

    @abstractmethod
    def broadcast(self, value: int) -> int:
        """The number that the first process has given, on all of them."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """What each process has given, in their order: anything that JSON can hold."""

    @property
    def is_main(self) -> bool:
        """Whether this is the first process, which writes what is written once."""
        return self.index == 0

    @property
    def are_several(self) -> bool:
        """Whether there is anyone to agree with."""
        return self.count > 1

    def main_decides(self, choose: Callable[[], int], what: str) -> int:
        """The number that the first process chooses, on all of them. What fails there fails on all.

        Args:
            choose: Called on the first process only; gives a number from -1 up.
            what: What is chosen, for the error on the other processes.
        """
        if not self.are_several:
            return choose()
        chosen, failure = _FAILED, None
        if self.is_main:
            try:
                chosen = choose()
            except Exception as error:
                failure = error
        chosen = self.broadcast(chosen)
        if failure is not None:
            raise failure
        if chosen == _FAILED:
            raise CheckpointError(f"{what}: this failed on the first process; see its log")
        return chosen

    def raise_together(self, failure: CheckpointError | None) -> None:
        """Raise on every process if something has failed on one, so that none waits for one that has given up."""
        failed = [index for index, has_failed in enumerate(self.gather(failure is not None)) if has_failed]
        if failure is not None:
            raise failure
        if failed:
            raise CheckpointError(f"process {failed[0]} could not write a checkpoint; see its log")

    def check_same(self, counts: Mapping[str, int | None], fix: str) -> None:
        """Raise on every process if their data do not go together.

        Args:
            counts: What has to be the same on all, by what it is called.
            fix: What to do about it.
        """
        gathered = self.gather(dict(counts))
        for name in counts:
            values = [one[name] for one in gathered]
            if len(set(values)) > 1:
                raise DataError(f"{name}: {values} by process, but must be the same on all; {fix}")


class JaxProcesses(Processes):
    """The processes that `jax.distributed` has brought together; one if it was not used."""

    @property
    def index(self) -> int:
        """As JAX counts them."""
        return jax.process_index()

    @property
    def count(self) -> int:
        """As JAX counts them."""
        return jax.process_count()

    def broadcast(self, value: int) -> int:
        """By a collective of JAX."""
        return int(multihost_utils.broadcast_one_to_all(np.int32(value))) if self.are_several else value

    def gather(self, value: Any) -> list[Any]:
        """By a collective of JAX, as text."""
        if not self.are_several:
            return [value]
        data = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = multihost_utils.process_allgather(np.int32(data.size))
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: data.size] = data
        texts = multihost_utils.process_allgather(padded)
        return [json.loads(text[:size].tobytes()) for text, size in zip(texts, sizes, strict=True)]


JAX_PROCESSES = JaxProcesses()


class ThreadProcesses(Processes):
    """A thread that stands for a process, for tests: the threads of a group agree as processes would.

    Args:
        index: Which one this is.
        values: Where the threads of the group put what they give; one place each.
        barrier: Where they wait for each other.
    """

    def __init__(self, index: int, values: list[Any], barrier: threading.Barrier):
        self._index = index
        self._values = values
        self._barrier = barrier

    @classmethod
    def group(cls, count: int, timeout_s: float = 60.0) -> list["ThreadProcesses"]:
        """As many as there are to be, each for a thread of its own. One that waits in vain raises after `timeout_s`."""
        values, barrier = [None] * count, threading.Barrier(count, timeout=timeout_s)
        return [cls(index, values, barrier) for index in range(count)]

    @property
    def index(self) -> int:
        """As given."""
        return self._index

    @property
    def count(self) -> int:
        """The size of the group."""
        return len(self._values)

    def broadcast(self, value: int) -> int:
        """What the first thread of the group has given."""
        return self.gather(value)[0]

    def gather(self, value: Any) -> list[Any]:
        """What all threads of the group have given, as JSON would bring it over."""
        self._values[self._index] = json.dumps(value)
        self._barrier.wait()
        gathered = [json.loads(one) for one in self._values]
        self._barrier.wait()  # nobody gives anything else before all have read
        return gathered


def whole(tree: Any) -> Any:
    """Arrays of which each process holds a part, whole, as numpy arrays on all of them."""
    return tree if jax.process_count() == 1 else multihost_utils.process_allgather(tree, tiled=True)
