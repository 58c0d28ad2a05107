"""The forms of arrays: what a step is traced with instead of with values, and how many bytes they take."""

import math
from typing import Any

import jax
import numpy as np


def forms_of(tree: Any) -> Any:
    """The shapes and dtypes of arrays, numbers and forms, with which a step is traced instead of with values."""
    return jax.tree.map(_form, tree)


def _form(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.numpy.result_type(leaf))


def device_bytes(tree: Any, shardings: Any) -> int:
    """The bytes that arrays, or arrays of these forms, take on each device."""
    leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True)
    return sum(math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf, sharding in leaves)
