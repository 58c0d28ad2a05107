"""What may be assigned to a config: its fields, and what its own constructor adds."""

import contextvars
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from trackside.config.hints import Kind, field_hints, kind_of, members_of
from trackside.config.wording import did_you_mean, listed
from trackside.errors import ConfigError

# Ids of the configs whose constructor is running: a `__post_init__` may add attributes that are not fields.
_under_construction: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar(
    "_under_construction", default=frozenset()
)


def as_constructor(method: Callable[..., None]) -> Callable[..., None]:
    """Let a method of a config, such as `__post_init__`, add attributes that are not fields."""

    @functools.wraps(method)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        token = _under_construction.set(_under_construction.get() | {id(self)})
        try:
            method(self, *args, **kwargs)
        finally:
            _under_construction.reset(token)

    return construct


def check_name(config: Any, name: str) -> None:
    """Refuse an attribute that neither the class nor its constructor knows.

    Raises:
        ConfigError: If assigning to it would do nothing, as a misspelled field does. It suggests the closest field.
    """
    fields = getattr(config, "__dataclass_fields__", None)
    if fields is None or name in fields or name.startswith("_") or hasattr(config, name):
        return
    if id(config) in _under_construction.get():
        return
    raise ConfigError(
        f"{name}: {type(config).__name__} has no field {name!r}; it has {listed(fields)}.{did_you_mean(name, fields)}"
    )


class UnknownArgumentError(ConfigError, TypeError):
    """A keyword argument that a config does not take; a TypeError too, as Python itself raises."""


def check_arguments(config_class: type, names: Iterable[str]) -> None:
    """Refuse keyword arguments that the constructor of a config does not take.

    Raises:
        UnknownArgumentError: It suggests the closest field.
    """
    fields = getattr(config_class, "__dataclass_fields__", {})
    unknown = [name for name in names if name not in fields]
    if not unknown:
        return
    parameters = inspect.signature(config_class.__init__).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    known = list(parameters)[1:]
    for name in unknown:
        if name not in known:
            raise UnknownArgumentError(
                f"{name}: {config_class.__name__} has no field {name!r}; it has {listed(known)}."
                f"{did_you_mean(name, known)}"
            )


def as_declared(config: Any, name: str, value: Any) -> Any:
    """The value to store: a tuple becomes a list where only a list is declared, so that it equals what is read back."""
    if type(value) is not tuple or name not in getattr(config, "__dataclass_fields__", ()):
        return value
    try:
        kinds = {kind_of(member) for member in members_of(field_hints(type(config))[name])}
    except ConfigError:  # annotations that cannot be resolved yet; writing the config will say so
        return value
    return list(value) if Kind.LIST in kinds and not kinds & {Kind.TUPLE, Kind.ANY, Kind.OBJECT} else value
