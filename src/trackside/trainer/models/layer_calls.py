"""What is done around the calls of a model's layers, without touching the user's classes.

The models that NNX and Equinox rebuild inside the step are new objects. Each of their layers gets a class derived from
its own, whose `__call__` opens a scope with the layer's name, so that it has a name in traces, and forgets what the
backward pass can compute again, if that is wanted. In mixed precision, all public methods cast what they are given from
outside of the model. In full precision none of this changes what is computed.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from trackside.trainer.models.casting import Casting
from trackside.trainer.models.named_leaves import Path

Checkpoint = Callable[[Callable], Callable]
"""From the `__call__` of a layer, one whose intermediate results are computed again in the backward pass."""


def wrap_layers(
    layers: Iterable[tuple[Path, Any]],
    base: type,
    casting: Casting | None = None,
    checkpoint: Checkpoint | None = None,
    forgetful: frozenset[Path] = frozenset(),
) -> None:
    """Let each layer do these things when it is called.

    Args:
        layers: Layers with their paths in the model; the path of the model itself is empty.
        base: The class of the library from which all layers are derived.
        casting: What is cast around calls from outside; None for nothing.
        checkpoint: How the library computes again what a layer forgets.
        forgetful: The layers that do so.
    """
    for path, layer in list(layers):
        name = _scope_name(path) if path and callable(layer) else None
        if name is not None or casting is not None:
            cls = _wrapped(type(layer), base, name, casting, checkpoint if path in forgetful else None)
            object.__setattr__(layer, "__class__", cls)


def _scope_name(path: Path) -> str:
    """The layer's own name; an element of a list has that of the list, too."""
    return ".".join(path[-2:]) if path[-1].isdigit() else path[-1]


@functools.lru_cache(maxsize=4096)
def _wrapped(cls: type, base: type, name: str | None, casting: Casting | None, checkpoint: Checkpoint | None) -> type:
    methods: dict[str, Callable] = {}
    if name is not None:
        methods["__call__"] = _in_scope(cls.__call__ if checkpoint is None else checkpoint(cls.__call__), name)
    if casting is not None:
        for one in set(_methods_of(cls, base)):
            methods[one] = _cast(methods[one] if one in methods else getattr(cls, one), casting)
    if not methods:  # no layer, but a mark or a container of the library
        return cls
    # The metaclass would check or register a subclass that is written out; this one only replaces methods.
    return type(cls)(cls.__name__, (cls,), {**methods, "__module__": cls.__module__, "__qualname__": cls.__qualname__})


def _in_scope(call: Callable, name: str) -> Callable:
    @functools.wraps(call)
    def scoped(self: Any, *args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(name):
            return call(self, *args, **kwargs)

    return scoped


def _cast(call: Callable, casting: Casting) -> Callable:
    @functools.wraps(call)
    def cast(self: Any, *args: Any, **kwargs: Any) -> Any:
        return casting.around(functools.partial(call, self))(*args, **kwargs)

    return cast


def _methods_of(cls: type, base: type) -> Iterator[str]:
    """The public methods that are the user's or a layer's own, and not those that every layer has."""
    for parent in set(cls.__mro__) - set(base.__mro__):
        for name, value in vars(parent).items():
            is_method = not isinstance(value, staticmethod) and inspect.isfunction(getattr(parent, name))
            if is_method and (name == "__call__" or not name.startswith("_")):
                yield name
