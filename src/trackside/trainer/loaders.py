"""What a loader can do: give its length, be opened, and have a position that can be saved and put back.

A position belongs to the iterator where that has `get_state` and `set_state` (grain), or to the loader itself, by the
same names or by `state_dict` and `load_state_dict` (PyTorch's stateful loaders).
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trackside.errors import DataError
from trackside.profiling.timers.timed_loader import without_timers
from trackside.text import a_type
from trackside.trainer.torch_batches import gives_tensors, numpy_batches

_NUM_PARTS = range(2, 5)
"""As many arrays make up a batch; lists of more are loaders."""


def open_loader(loader: Iterable, what: str) -> Iterator:
    """An iterator over a loader's batches, or an error that says what is wrong with the loader.

    Batches of PyTorch's loaders have numpy arrays in place of tensors.
    """
    if isinstance(loader, type):
        raise DataError(f"{what}: expected an iterable of batches, got the class {loader.__name__}; call it")
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise DataError(f"{what}: expected an iterable of batches, got {a_type(loader)}")
    if found := _whole_data(loader):
        raise DataError(
            f"{what}: expected an iterable of batches, got {found}; cut it into batches, such as "
            "[(x[at : at + 64], y[at : at + 64]) for at in range(0, len(x), 64)], or pass [batch] if it is one, and "
            "list(x) if each x[i] is one"
        )
    return numpy_batches(iter(loader)) if gives_tensors(loader) else iter(loader)


def _whole_data(loader: Any) -> str:
    """What was given in place of a loader, if that is a data set or a single batch; empty otherwise.

    Batches may be arrays, so that a list or a tuple of arrays that are alike is a loader.
    """
    if _is_array(loader):
        return f"an array of shape {tuple(loader.shape)}"
    if isinstance(loader, Mapping):
        return f"a dict with {', '.join(map(repr, list(loader)[:4]))}" if loader else "an empty dict"
    # Only plain ones: a class of the user's own may do something whenever it is iterated over.
    if type(loader) not in (list, tuple) or len(loader) not in _NUM_PARTS or not all(map(_is_array, loader)):
        return ""
    shapes = [tuple(part.shape) for part in loader]
    is_one = len({shape[:1] for shape in shapes}) == 1
    is_tuple = isinstance(loader, tuple)
    differ = {
        (str(part.dtype), shape[1:] if is_tuple else len(shape)) for part, shape in zip(loader, shapes, strict=True)
    }
    return f"{a_type(loader)} of arrays of shapes {', '.join(map(str, shapes))}" if is_one and len(differ) > 1 else ""


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "ndim")


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader, or its sampler, which epoch begins if it wants to know; counted from 0, as is usual there."""
    is_class = isinstance(loader, type)  # given in place of a loader by mistake, which opening it will say
    if not is_class and (setter := _epoch_setter(loader)) is not None:
        setter(epoch)


def _epoch_setter(loader: Any) -> Any:
    owners = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    return next((one for owner in owners if callable(one := getattr(owner, "set_epoch", None))), None)


def is_repeatable(loader: Any) -> bool:
    """Whether a loader without a position is known to give the same batches again for the same epoch."""
    is_in_order = type(getattr(loader, "sampler", None)).__name__ == "SequentialSampler"  # PyTorch's
    return isinstance(without_timers(loader), list | tuple) or is_in_order or _epoch_setter(loader) is not None


def restarts(loader: Any, iterator: Iterator) -> bool:
    """Whether a loader is known to begin again from its start, however far one of its iterators was read.

    Args:
        loader: The loader.
        iterator: What it gave when it was opened.
    """
    is_indexed = hasattr(loader, "__getitem__") and hasattr(loader, "__len__")
    has_workers = gives_tensors(loader) and getattr(loader, "num_workers", 0) > 0  # who have copies of the data set
    return is_indexed or has_workers or has_position(iterator) or _epoch_setter(loader) is not None


def has_position(source: Any) -> bool:
    """Whether a loader or an iterator can say where it is and be put there."""
    is_class = isinstance(source, type)  # given in place of a loader by mistake, which opening it will say
    return not is_class and _getter(source) is not None and _setter(source) is not None


def get_position(source: Any) -> Any:
    """Where a loader or an iterator is, as JSON can hold it; None if it cannot say.

    Raises:
        DataError: What it says is nothing that JSON can hold.
    """
    getter = _getter(source)
    if getter is None:
        return None
    state = getter()
    if isinstance(state, bytes):
        return {"bytes": base64.b64encode(state).decode()}
    try:
        return {"plain": json.loads(json.dumps(state))}  # as it is now: many loaders go on changing what they gave
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the position of {type(source).__name__} cannot be saved: {error}; return bytes, or plain numbers, "
            "strings, lists and dicts"
        ) from error


def decode_position(saved: Any) -> Any:
    """A saved position as the loader gave it; of several loaders, by their names."""
    if saved is None or "plain" in saved:
        return None if saved is None else saved["plain"]
    if "bytes" in saved:
        return base64.b64decode(saved["bytes"])
    return {name: decode_position(one) for name, one in saved.items()}


def set_position(source: Any, position: Any) -> bool:
    """Put a loader or an iterator to where it was.

    Returns:
        False if it cannot be put anywhere.
    """
    setter = _setter(source)
    if setter is not None:
        setter(position)
    return setter is not None


def _getter(source: Any) -> Any:
    return next((one for name in ("get_state", "state_dict") if callable(one := getattr(source, name, None))), None)


def _setter(source: Any) -> Any:
    return next(
        (one for name in ("set_state", "load_state_dict") if callable(one := getattr(source, name, None))), None
    )


def positions_of(loaders: dict[str, Any]) -> dict[str, Any]:
    """The positions of loaders that have one themselves, by name; of a dict of loaders, a dict."""
    return {
        name: positions_of(loader) if isinstance(loader, dict) else get_position(loader)
        for name, loader in loaders.items()
        if isinstance(loader, dict) or has_position(loader)
    }


def restore_loaders(positions: dict[str, Any], loaders: dict[str, Any]) -> None:
    """Put saved positions back into loaders.

    Args:
        positions: Positions under `train`, `val` and `test`.
        loaders: The loaders to set, by the same names; None for those that are not wanted.
    """
    for name, loader in loaders.items():
        state = positions.get(name)
        if loader is None or state is None:
            continue
        if isinstance(loader, dict) and not isinstance(state, dict):
            raise DataError(f"loader {name!r}: one position was saved for it, and it is a dict of {sorted(loader)} now")
        if isinstance(loader, dict):
            restore_loaders(
                {f"{name}/{key}": position for key, position in state.items()},
                {f"{name}/{key}": one for key, one in loader.items()},
            )
        elif not set_position(loader, state):
            raise DataError(
                f"loader {name!r}: a position was saved for it, and {type(loader).__name__} has neither set_state nor "
                "load_state_dict; use a loader with a position, such as a grain iterator"
            )
