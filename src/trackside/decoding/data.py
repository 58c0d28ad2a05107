"""The data of the decoding loops: pairs of inputs and targets, in numpy, JAX or PyTorch, from any loader."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from trackside.errors import DataError
from trackside.text import a_type


class Pair(NamedTuple):
    """Inputs and targets, with samples on the first axis of each."""

    inputs: Any
    targets: Any


def to_numpy(array: Any) -> np.ndarray:
    """The array in numpy; on the host without a copy."""
    if is_torch_tensor(array):
        return array.detach().cpu().numpy()
    return np.asarray(array)


def is_torch_tensor(array: Any) -> bool:
    """Whether the array is PyTorch's, found out without importing it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def split_pair(pair: Any, name: str) -> Pair:
    """Inputs and targets of a batch or data set.

    Args:
        pair: A tuple or list of two arrays, or anything with the attributes `inputs` and `targets`.
        name: What the caller calls it, for the error.

    Raises:
        DataError: It is not such a pair, or its parts differ in length.
    """
    if hasattr(pair, "inputs") and hasattr(pair, "targets"):
        inputs, targets = pair.inputs, pair.targets
    elif isinstance(pair, tuple | list) and len(pair) == 2:
        inputs, targets = pair
    else:
        found = f"{len(pair)} parts" if isinstance(pair, tuple | list) else a_type(pair)
        raise DataError(f"{name}: expected the pair (inputs, targets), got {found}")
    lengths = _length(inputs, f"inputs of {name}"), _length(targets, f"targets of {name}")
    if lengths[0] != lengths[1]:
        raise DataError(
            f"{name}: {lengths[0]} inputs and {lengths[1]} targets. Both need one entry per sample on their first axis"
        )
    return Pair(inputs, targets)


def _length(array: Any, name: str) -> int:
    shape = getattr(array, "shape", None)
    if shape is None:
        raise DataError(f"{name}: expected an array of numpy, JAX or PyTorch, got {a_type(array)}")
    if len(shape) == 0:
        raise DataError(f"{name}: expected samples on the first axis, got a scalar")
    return shape[0]


def data_set(pair: Any, name: str) -> Pair:
    """A whole data set to evaluate on, in numpy.

    Raises:
        DataError: It is not a pair of arrays of the same length, or too short for an R².
    """
    inputs, targets = split_pair(pair, name)
    if len(inputs) == 0:
        raise DataError(f"{name}: has no samples")
    return Pair(to_numpy(inputs), to_numpy(targets))


class Pairs:
    """The batches of any loader as pairs, from the start in each epoch.

    Args:
        loader: The user's loader, or a wrapper of it.
        convert: Brings an array into the form that the training takes.
    """

    def __init__(self, loader: Iterable[Any], convert: Callable[[Any], Any]):
        self._loader, self._convert = loader, convert
        self._num_epochs = 0

    def __iter__(self) -> Iterator[Pair]:
        self._num_epochs += 1
        for batch in open_epoch(self._loader, self._num_epochs):
            yield to_pair(batch, self._convert)


def to_pair(batch: Any, convert: Callable[[Any], Any]) -> Pair:
    """A batch of a loader as a pair of converted arrays."""
    inputs, targets = split_pair(batch, "a batch of train_loader")
    return Pair(convert(inputs), convert(targets))


def open_epoch(loader: Iterable[Any], epoch: int) -> Iterator[Any]:
    """The batches of one epoch.

    Args:
        loader: The user's loader, or a wrapper of it.
        epoch: The epoch, counted from 1, for the error.

    Raises:
        DataError: The loader cannot be iterated over, or gives no batch.
    """
    try:
        batches = iter(loader)
    except TypeError as error:
        raise DataError(
            f"train_loader: {a_type(loader)} cannot be iterated over. Pass a loader or a list of batches"
        ) from error
    num_batches = 0
    for batch in batches:
        num_batches += 1
        yield batch
    if num_batches:
        return
    if epoch == 1:
        raise DataError("train_loader: gave no batch at all. Is the data set smaller than one batch, with drop_last?")
    raise DataError(
        f"train_loader: gave no batch in epoch {epoch}. An iterator can be used only once: pass a loader that "
        "starts over each time, or train for one epoch"
    )


def slices(num_samples: int, batch_size: int | None) -> Iterator[slice]:
    """Slices of at most `batch_size` samples; one of all where it is None."""
    step = batch_size or num_samples
    return (slice(start, start + step) for start in range(0, num_samples, step))
