"""Paths of the leaves of a pytree, as they are written in errors, patterns, files and metrics."""

from typing import Any


def leaf_path(key_path: Any) -> str:
    """The path of a leaf, such as `block_0/dense/kernel`.

    Args:
        key_path: The keys that `jax.tree_util` gives for it, of whatever kind: of a dict, a sequence, an attribute.
    """
    return "/".join(_key(key) for key in key_path)


def _key(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
