"""Which library a model is of, and how it is built from its config.

A library is imported only when a model of it is trained: a class that derives from one of its classes has imported it.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from trackside.errors import ConfigError
from trackside.optional import require
from trackside.trainer.models.adapter import Library, ModelAdapter, ModelConfig
from trackside.trainer.models.casting import Casting
from trackside.trainer.models.functions import FunctionAdapter, FunctionModel
from trackside.trainer.models.remat import Remat

_BASES: dict[Library, tuple[str, str]] = {
    "linen": ("flax.linen", "Module"),
    "nnx": ("flax.nnx", "Module"),
    "equinox": ("equinox", "Module"),
}
_EXPECTED = (
    "expected a class of flax.linen, flax.nnx or equinox, a function of `rngs` (NNX) or `key` (Equinox) that builds a "
    "model, a model that is built, or plain functions as a FunctionModel or a pair (init_fn, apply_fn)"
)


def library_of(model: Any) -> Library | None:
    """The library of a model, a class, or a pair of functions; None if it is of none that is known.

    Args:
        model: A class, a model, or a pair of an Equinox model and its state.
    """
    if isinstance(model, FunctionModel):
        return "functions"
    if isinstance(model, tuple) and len(model) == 2:
        return "functions" if all(inspect.isroutine(one) for one in model) else library_of(model[0])
    for library, (module, name) in _BASES.items():
        base = getattr(sys.modules.get(module), name, None)
        if base is not None and (isinstance(model, base) or (isinstance(model, type) and issubclass(model, base))):
            return library
    return None


def build_model(config: ModelConfig) -> Any:
    """What a config names: a Linen module, a model that is built, or a function that builds one from its keys.

    A class is checked before it is called: its name may have come from a file.
    """
    model = config.model_class
    library = library_of(model)
    if model is None or (library is None and (isinstance(model, type) or not callable(model))):
        raise ConfigError(f"model_class: {_EXPECTED}; got {model!r}")
    if library == "functions" or not (isinstance(model, type) or library is None):
        return model
    return _builder(model, config, library)


def _builder(model_class: Callable, config: ModelConfig, library: Library | None) -> Any:
    """A Linen module, or a function of the keys that builds a model of another library."""
    wanted = config.model_config if config.model_config is not None else config
    takes = _parameters(model_class)
    if library == "nnx" or "rngs" in takes:
        return functools.partial(_build_nnx, model_class, wanted)
    if library == "equinox" or "key" in takes:
        return functools.partial(_build_equinox, model_class, wanted)
    return _call(model_class, wanted, {})


def _build_nnx(model_class: Callable, wanted: Any, rngs: Any) -> Any:
    return _call(model_class, wanted, {"rngs": rngs})


def _build_equinox(model_class: Callable, wanted: Any, key: Any) -> Any:
    return _call(model_class, wanted, {"key": key})


def _call(model_class: Callable, wanted: Any, keys: dict[str, Any]) -> Any:
    """Build the model with its config, if it takes one, and its keys."""
    takes = _parameters(model_class)
    args = (wanted,) if [name for name in takes if name not in keys] or not takes else ()
    try:
        return model_class(*args, **keys)
    except TypeError as error:
        given = ", ".join(["its config", *keys] if args else [*keys])
        raise ConfigError(
            f"model_class: {getattr(model_class, '__name__', model_class)} is built with {given} as the only "
            f"argument{'s' if len(keys) + len(args) > 1 else ''}, and that failed: {error}. A Linen model takes its "
            "config by a field, such as `config: Any = None`; others by the first argument, if they have one"
        ) from error


def _parameters(model_class: Callable) -> tuple[str, ...]:
    try:
        if isinstance(model_class, type):  # NNX hides the signature of its classes behind that of their metaclass
            return tuple(inspect.signature(model_class.__init__).parameters)[1:]
        return tuple(inspect.signature(model_class).parameters)
    except (TypeError, ValueError):
        return ()


def adapter_for(
    model: Any, config: ModelConfig, casting: Casting | None = None, remat: Remat | None = None
) -> ModelAdapter:
    """The adapter for a model.

    Args:
        model: What `build_model` gives, or a model that a trainer has built itself.
        config: Its library, if that is named, and how it is spread over devices.
        casting: What is cast around calls of the model; None for nothing.
        remat: Which layers compute their intermediate results again in the backward pass; None for none.
    """
    known = library_of(model) or library_of(config.model_class)
    if config.library is not None and known not in (None, config.library):
        raise ConfigError(f"library: got {config.library!r} for a model of {known}; leave it out, or correct it")
    library = config.library or known or _library_of_builder(model)
    if library == "linen":
        from trackside.trainer.models.linen import LinenAdapter

        if not isinstance(model, sys.modules["flax.linen"].Module):
            raise ConfigError(f"model: expected a flax.linen.Module that is built, got {model!r}")
        return LinenAdapter(model, config.parallel.rules, casting, remat)
    if library == "nnx":
        from trackside.trainer.models.nnx import NnxAdapter

        return NnxAdapter(model, config.parallel.rules, casting, remat)
    if library == "equinox":
        require("equinox", "an Equinox model")
        from trackside.trainer.models.equinox import EquinoxAdapter

        return EquinoxAdapter(model, casting, remat)
    if library == "functions":
        if remat is not None:
            raise ConfigError(
                "remat: plain functions have no layers with names; wrap the parts of apply_fn in jax.checkpoint instead"
            )
        functions = model if isinstance(model, FunctionModel) else FunctionModel(*model)
        if next(iter(_parameters(functions.init_fn)), "").startswith("param"):
            raise ConfigError("model: expected (init_fn, apply_fn), but the first takes parameters; swap them")
        return FunctionAdapter(functions, casting)
    raise ConfigError(f"model: {_EXPECTED}; got {model!r}")


def _library_of_builder(model: Any) -> Library | None:
    """The library of what a function builds, as far as its arguments tell."""
    takes = _parameters(model) if callable(model) else ()
    library = "nnx" if "rngs" in takes else "equinox" if "key" in takes else None
    if library is not None and len(_required(model)) > 1:
        raise ConfigError(
            f"model: a function that builds a model takes `rngs` or `key` alone, and this one takes "
            f"({', '.join(takes)}); of plain functions, pass both: (init_fn, apply_fn)"
        )
    return library


def _required(function: Callable) -> list[str]:
    """The parameters that a function cannot do without."""
    empty, kinds = inspect.Parameter.empty, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.default is empty and one.kind not in kinds]
