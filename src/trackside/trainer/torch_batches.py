"""Batches of PyTorch's loaders: their tensors become numpy arrays, which JAX takes.

By default, `DataLoader` makes tensors of what a data set gives. Nothing is copied: array and tensor share their
memory.
"""

import sys
from collections.abc import Iterator
from typing import Any

import jax
import ml_dtypes

from trackside.errors import DataError


def gives_tensors(loader: Any) -> bool:
    """Whether a loader is one of PyTorch. The package is not imported to find out."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(loader, data.DataLoader)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def numpy_batches(batches: Iterator) -> Iterator:
    """The batches, with numpy arrays in place of tensors."""
    for batch in batches:
        yield with_arrays(batch)


def with_arrays(batch: Any) -> Any:
    """The batch with numpy arrays in place of tensors, or as it is if it has none."""
    if not any(map(is_tensor, jax.tree.leaves(batch))):
        return batch
    return jax.tree.map(lambda leaf: _to_array(leaf) if is_tensor(leaf) else leaf, batch)


def _to_array(tensor: Any) -> Any:
    if tensor.device.type != "cpu":
        raise DataError(
            f"batch: a tensor is on {tensor.device}; let the loader leave batches on the CPU, and JAX sends them to "
            "its devices"
        )
    torch, tensor = sys.modules["torch"], tensor.detach()
    if tensor.dtype == torch.bfloat16:  # numpy has no such type of its own
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
