"""How many examples a batch has, and how many batches a loader."""

from typing import Any

import jax

from trackside.errors import DataError
from trackside.tree_paths import leaf_path


def batch_size(batch: Any) -> int:
    """The number of examples in a batch: the length of its leaves, which all have to agree."""
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if getattr(leaf, "ndim", 0):
            sizes[leaf_path(path)] = leaf.shape[0]
    if not sizes:
        raise DataError(f"batch: expected at least one array with a leading batch dimension, got {batch!r}")
    if len(set(sizes.values())) > 1:
        raise DataError(f"batch: the leading dimensions of its leaves differ: {sizes}")
    return next(iter(sizes.values()))


def loader_length(loader: Any) -> int | None:
    """The number of batches, if the loader knows."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None
