"""What the loaders give: a batch, and the loaders of a data set by their use."""

import dataclasses
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from trackside.errors import ConfigError, DataError
from trackside.text import a_type
from trackside.trainer.torch_batches import is_tensor
from trackside.tree_paths import leaf_path

_registered: set[type] = set()


@dataclass
class Batch:
    """Inputs and targets; a pytree. Subclasses may add fields, with `@dataclass` above them as usual."""

    inputs: Any
    targets: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make room for `flax.struct.dataclass`."""
        super().__init_subclass__(**kwargs)
        # It freezes its classes, which Python refuses below a class that is not frozen. Its own mark makes it leave the
        # class as it is, and the first instance does the rest.
        cls._flax_dataclass = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Register the class as a pytree, at its first instance."""
        del args, kwargs
        # A subclass gets its fields from the decorator, after the class statement: the first instance is the first
        # moment at which all of them are known.
        if cls not in _registered:
            _register(cls)
        return object.__new__(cls)

    def __getitem__(self, index: Any) -> Self:
        """The same part of every leaf, such as the first rows: `batch[:8]`. Scalars stay as they are."""
        return slice_batch(self, index)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def _complete(cls: type) -> None:
    """Do what the decorator of Flax would have done, for the class and for those above it, which give their fields."""
    for parent in reversed(cls.__mro__):
        if not issubclass(parent, Batch) or "__dataclass_fields__" in parent.__dict__:
            continue
        try:
            dataclass(parent)
        except TypeError:  # a field without a default after one with: it was to be passed by its name
            dataclass(kw_only=True)(parent)


def _register(cls: type) -> None:
    _complete(cls)
    static = [field.name for field in dataclasses.fields(cls) if field.init and _is_static(field)]
    arrays = [field.name for field in dataclasses.fields(cls) if field.init and not _is_static(field)]
    try:
        jax.tree_util.register_dataclass(cls, data_fields=arrays, meta_fields=static)
    except ValueError as error:
        if "uplicate" not in str(error):  # registered already, by a decorator of another library or another thread
            raise
    _registered.add(cls)


def _is_static(field: dataclasses.Field) -> bool:
    """Whether a field is no array, as JAX and Flax mark it: `field(metadata={"static": True})`."""
    return field.metadata.get("static", False) or not field.metadata.get("pytree_node", True)


def slice_batch(batch: Any, index: Any) -> Any:
    """The same part of every leaf of a batch, whether array or `jax.ShapeDtypeStruct`."""
    return jax.tree.map(lambda leaf: _slice_leaf(leaf, index), batch)


def _slice_leaf(leaf: Any, index: Any) -> Any:
    if not np.ndim(leaf):
        return leaf
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf[index]
    return jax.eval_shape(lambda array: array[index], leaf)


def zeros_for_shape(leaf: Any) -> Any:
    """An array of zeros for a `jax.ShapeDtypeStruct`; anything else as it is."""
    return jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf


def num_bytes_of(batch: Any) -> int:
    """The size of a batch in memory; of one that gives shapes only, that of such a batch."""
    return sum(int(np.prod(np.shape(leaf))) * jnp.result_type(leaf).itemsize for leaf in jax.tree.leaves(batch))


def check_leaves(batch: Any) -> None:
    """Raise if a batch holds anything that is neither an array nor a number that JAX takes, such as a string.

    Raises:
        DataError: It does.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if is_tensor(leaf):
            raise DataError(
                f"batch: {leaf_path(path) or 'it'} is a tensor of PyTorch; let the loader give tensor.numpy(). Only "
                "batches of a DataLoader that you pass itself are turned into arrays"
            )
        is_number = isinstance(leaf, numbers.Number)
        is_array = (
            hasattr(leaf, "shape") and hasattr(leaf, "dtype") and np.dtype(_plain(leaf.dtype)).kind not in "OSUMm"
        )
        if not is_number and not is_array:
            found = f"an array of {leaf.dtype}" if hasattr(leaf, "dtype") else f"of type {type(leaf).__name__}"
            raise DataError(
                f"batch: {leaf_path(path) or 'it'} is {found}; a batch holds arrays of numbers only. Let the loader "
                "leave it out or turn it into numbers, or keep it in a static field of a Batch"
            )
        dtype = getattr(leaf, "dtype", None)
        if dtype is not None and (fix := _fix_for(dtype)):
            raise DataError(
                f"batch: {leaf_path(path) or 'it'} is an array of {dtype}, which JAX does not take; let the "
                f"loader give {fix}"
            )


def _fix_for(dtype: Any) -> str:
    """What to do about numbers that JAX does not take; empty for those that it does."""
    dtype = np.dtype(_plain(dtype))
    if not dtype.isnative:  # as files of other machines have them
        return "array.astype(array.dtype.newbyteorder('='))"
    if dtype.names:
        return "its fields as arrays of their own"
    is_too_long = dtype.itemsize > {"f": 8, "c": 16}.get(dtype.kind, dtype.itemsize)
    return "array.astype(np.float32)" if is_too_long else ""


def _plain(dtype: Any) -> Any:
    """The dtype as numpy knows it; that of keys has no such form and is as good as a number."""
    return np.uint32 if jnp.issubdtype(dtype, jax.dtypes.extended) else dtype


@dataclass
class DataloaderModule:
    """The loaders of a data set. Any iterable of batches will do; validation and test may be dicts of them."""

    train_dataloader: Iterable | None = None
    val_dataloader: Iterable | dict[str, Iterable] | None = None
    test_dataloader: Iterable | dict[str, Iterable] | None = None


def check_dataset(dataset: Any) -> None:
    """Raise if something has no loaders. It need not be a `DataloaderModule`: any object with the same names will do.

    Raises:
        ConfigError: It says what to write.
    """
    if not hasattr(dataset, "train_dataloader"):
        raise ConfigError(
            f"dataset: expected a DataloaderModule, got {a_type(dataset)}; write DataloaderModule(train_dataloader=...)"
        )
