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
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if np.ndim(leaf) and (get := build_getter(path)) is not None:
            # numpy builds a shape each time it is asked; JAX keeps it
            return FirstArray(get, len if type(leaf) is np.ndarray else _first_length)
    return FirstArray(_no_array, len)


def _first_length(array: Any) -> int:
    return array.shape[0]


def _no_array(batch: Any) -> tuple[()]:
    del batch
    return ()
