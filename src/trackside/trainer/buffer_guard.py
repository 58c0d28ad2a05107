"""Who owns the memory of a batch.

JAX may read a numpy array until the call that was given it has completed, so a loader that refills its arrays would
change batches under a running step. Such loaders are recognized by their addresses, and their batches copied.
"""

import logging
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from trackside.fusing.batch_copies import copied_batch, copied_leaf, is_trusted

LOGGER = logging.getLogger(__name__)


class BufferGuard:
    """Tells whether a loader writes again into arrays that are still in use, and copies from then on.

    Args:
        loader: The loader. Lists and tuples run no code between batches and are never suspected.
        num_in_flight: How many calls may be under way while the loader makes the next batch.
    """

    def __init__(self, loader: Any, num_in_flight: int):
        self.trusted = is_trusted(loader)
        self.copies = False
        # Beside their addresses is who owns them: memory that is free may be given out again for a good reason.
        self._recent: deque[dict[int, Callable[[], Any]]] = deque(maxlen=num_in_flight)
        self._num_in_flight = num_in_flight
        self._num_seen = 0

    @property
    def on_probation(self) -> bool:
        """Whether each call has to complete before the next batch is asked for, since nothing is known yet.

        The loader has refilled an array before its address is seen for the second time; until enough batches have
        shown that this does not happen, no call may be under way meanwhile.
        """
        return not self.trusted and not self.copies and self._num_seen <= self._num_in_flight

    def copy_all(self) -> None:
        """Copy every batch from here on that the loader may write into."""
        self.copies = not self.trusted

    def protect(self, batch: Any) -> Any:
        """The batch, or a copy of it if the loader may write into it."""
        if self.trusted:
            return batch
        self._num_seen += 1
        if not self.copies:
            self._look_at(batch)
        return copied_batch(batch) if self.copies else batch

    def _look_at(self, batch: Any) -> None:
        owners = {
            leaf.__array_interface__["data"][0]: _owner_of(leaf)
            for leaf in jax.tree.leaves(batch)
            if isinstance(leaf, np.ndarray) and leaf.size
        }
        reused = [at for at, recent in enumerate(self._recent) if _share_memory(owners, recent)]
        if reused:
            self.copies = True
            self._warn(self._num_seen - len(self._recent) + reused[0])
        self._recent.append(owners)

    def _warn(self, first_reused: int) -> None:
        """Say which batches may have been overwritten: those after the first may follow it before this one is used."""
        first, last = max(first_reused, self._first_at_risk), self._num_seen - 1
        if first > last:
            return
        which = f"batch {last}" if first == last else f"batches {first} to {last}"
        LOGGER.warning(
            "the loader began to reuse the memory of its batches at batch %d: %s may have been overwritten while "
            "in use; from here on batches are copied",
            self._num_seen,
            which,
        )

    @property
    def _first_at_risk(self) -> int:
        """The first batch that was neither copied nor trained on before the next was asked for, from 1."""
        return self._num_in_flight + 1


class AheadGuard(BufferGuard):
    """The same for batches that are read ahead, of which each has to outlast those that are read after it.

    Nothing can wait for a call here, so the first batches are copied until the loader has shown that it leaves them
    alone. A loader may also give up its arrays on the device with the next batch, as a jitted function does with what
    it donates.

    Args:
        loader: The loader.
        num_in_use: How many batches may be waiting or in use while the loader makes the next.
    """

    def __init__(self, loader: Any, num_in_use: int):
        super().__init__(loader, num_in_use)
        self._last_on_device: list[jax.Array] = []

    def protect(self, batch: Any) -> Any:
        """The batch, or a copy of it that nobody writes to."""
        if self.trusted:
            return batch
        is_unknown = self.on_probation
        self.copies = self.copies or self._has_given_up_last()
        self._num_seen += 1
        if not self.copies:
            self._look_at(batch)
            self._last_on_device = [leaf for leaf in jax.tree.leaves(batch) if isinstance(leaf, jax.Array)]
        return jax.tree.map(copied_leaf, batch) if is_unknown or self.copies else batch

    @property
    def _first_at_risk(self) -> int:
        return self._num_in_flight + 2  # those on probation are copied, and one more

    def _has_given_up_last(self) -> bool:
        return any(leaf.is_deleted() for leaf in self._last_on_device)


def _owner_of(array: np.ndarray) -> Callable[[], Any]:
    """Gives who owns the memory of an array, or None once that is free, which this does not delay.

    Memory that is not numpy's may be used again while the object that gave it is gone, so that the array is held.
    """
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return weakref.ref(owner) if owner.base is None else lambda: array


def _share_memory(owners: dict[int, Callable[[], Any]], recent: dict[int, Callable[[], Any]]) -> bool:
    return any(recent[address]() is not None for address in owners.keys() & recent.keys())
