"""Gets one leaf of a tree again and again, without taking the tree apart each time."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from jax.tree_util import DictKey, GetAttrKey, SequenceKey


def build_getter(path: Sequence[Any]) -> Callable[[Any], Any] | None:
    """A function that gets the leaf at a path of JAX from trees of the same structure.

    Args:
        path: The path, as `jax.tree_util.tree_leaves_with_path` gives it.

    Returns:
        The function; None where the path leads through a container that cannot be asked by key.
    """
    getters = [_getter_of(key) for key in path]
    if any(getter is None for getter in getters):
        return None
    if len(getters) == 1:
        return getters[0]

    def get(tree: Any) -> Any:
        for getter in getters:
            tree = getter(tree)  # type: ignore[misc]
        return tree

    return get


def _getter_of(key: Any) -> Callable[[Any], Any] | None:
    if isinstance(key, SequenceKey):
        return operator.itemgetter(key.idx)
    if isinstance(key, DictKey):
        return operator.itemgetter(key.key)
    if isinstance(key, GetAttrKey):
        return operator.attrgetter(key.name)
    return None
