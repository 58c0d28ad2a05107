"""Leaves of a library's own containers as plain nested dicts, which jit flattens in C++, and back."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

Path = tuple[str, ...]


def path_of(keys: Iterable[Any]) -> Path:
    """The path of a leaf by names: of attributes, dict entries and indices, whichever kind of key they are.

    Args:
        keys: The keys that `jax.tree_util` or NNX gives for it.
    """
    return tuple(_name(key) for key in keys)


def _name(key: Any) -> str:
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def nest(paths: Sequence[Path], leaves: Sequence[Any]) -> dict[str, Any]:
    """Leaves in dicts of dicts, by their paths."""
    nested: dict[str, Any] = {}
    for path, leaf in zip(paths, leaves, strict=True):
        inner = nested
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = leaf
    return nested


def pick(paths: Sequence[Path], nested: dict[str, Any]) -> list[Any]:
    """The leaves of such dicts, in the order of their paths."""
    leaves = []
    for path in paths:
        found: Any = nested
        for name in path:
            found = found[name]
        leaves.append(found)
    return leaves


def split_arrays(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The arrays of a tree, and a function that puts others in their place; what is no array stays where it is.

    Args:
        tree: Such as the arguments of a call, with flags among them that must not be traced.
    """
    leaves, structure = jax.tree.flatten(tree)
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray)]

    def put_back(arrays: Sequence[Any]) -> Any:
        filled = list(leaves)
        for index, array in zip(places, arrays, strict=True):
            filled[index] = array
        return jax.tree.unflatten(structure, filled)

    return [leaves[index] for index in places], put_back
