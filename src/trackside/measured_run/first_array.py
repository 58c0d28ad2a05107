"""Counts the examples of batches, without taking each of them apart."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from trackside.measured_run.tree_getter import build_getter


class FirstArray(NamedTuple):
    """How the examples of batches of one form are counted: as the length of their first array."""

    get: Callable[[Any], Any]
    """Gets the array of a batch."""
    length_of: Callable[[Any], int]


def find_first_array(batch: Any) -> FirstArray:
    """How the examples of batches like this one are counted."""
    arrays = ((path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(batch) if np.ndim(leaf))
    path, leaf = next(arrays, (None, None))
    get = None if path is None else build_getter(path)
    if get is None:
        return FirstArray(first_array, len)
    # numpy builds a shape each time it is asked; JAX keeps it
    return FirstArray(get, len if type(leaf) is np.ndarray else _first_length)


def first_array(batch: Any) -> Any:
    """The first leaf of a batch that has a length, unlike a step size or a temperature; empty if there is none."""
    return next((leaf for leaf in jax.tree.leaves(batch) if np.ndim(leaf)), ())


def _first_length(array: Any) -> int:
    return array.shape[0]
