"""Copies of batches whose memory the loader may use again."""

from typing import Any

import jax
import numpy as np
from jax.tree_util import tree_flatten

from trackside.profiling.timers.timed_loader import without_timers


def is_trusted(loader: Any) -> bool:
    """Whether a loader runs no code between batches, so that it cannot write into them."""
    return isinstance(without_timers(loader), list | tuple)


def copied_batch(batch: Any) -> Any:
    """The batch with copies of its numpy arrays, which a loader could write into. Paid for at every step by some."""
    leaves, structure = tree_flatten(batch)
    return structure.unflatten([leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves])


def copied_leaf(leaf: Any) -> Any:
    """A copy of an array, wherever it is: the original may be written to, or given up."""
    if isinstance(leaf, jax.Array):
        return jax.device_put(leaf, may_alias=False)  # without a program for it, as `leaf.copy()` has
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
