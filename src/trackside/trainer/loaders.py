"""What a loader can do: give its length, be opened, and have a position that can be saved and put back.

A position belongs to the iterator where that has `get_state` and `set_state` (grain), or to the loader itself, by the
same names or by `state_dict` and `load_state_dict` (PyTorch's stateful loaders).
"""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any

from trackside.errors import DataError


def open_loader(loader: Iterable, what: str) -> Iterator:
    """An iterator over a loader's batches, or an error that says what is wrong with the loader."""
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise DataError(f"{what}: expected an iterable of batches, got {type(loader).__name__}")
    return iter(loader)


def loader_length(loader: Any) -> int | None:
    """The number of batches, if the loader knows."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def describe_loader(loader: Any) -> str:
    """A loader in a few words."""
    if loader is None:
        return "none"
    if isinstance(loader, dict):
        return ", ".join(f"{name}: {describe_loader(one)}" for name, one in loader.items())
    length = loader_length(loader)
    return type(loader).__name__ if length is None else f"{length} batch" if length == 1 else f"{length} batches"


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader, or its sampler, which epoch begins if it wants to know; counted from 0, as is usual there."""
    if (setter := _epoch_setter(loader)) is not None:
        setter(epoch)


def _epoch_setter(loader: Any) -> Any:
    owners = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    return next((one for owner in owners if callable(one := getattr(owner, "set_epoch", None))), None)


def is_repeatable(loader: Any) -> bool:
    """Whether a loader without a position is known to give the same batches again for the same epoch."""
    is_in_order = type(getattr(loader, "sampler", None)).__name__ == "SequentialSampler"  # PyTorch's
    return isinstance(loader, list | tuple) or is_in_order or _epoch_setter(loader) is not None


def has_position(source: Any) -> bool:
    """Whether a loader or an iterator can say where it is and be put there."""
    return _getter(source) is not None and _setter(source) is not None


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
