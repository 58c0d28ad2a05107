"""What may be assigned to a config: values of the declared types to its fields, and what its own constructor adds."""

import contextvars
import functools
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any

from trackside.config.declared_types import check_field, check_fields, declared_hints, to_plain_number
from trackside.config.hints import Kind, kind_of, members_of
from trackside.config.wording import did_you_mean, listed
from trackside.errors import ConfigError, TracksideError

# Ids of the configs whose constructor is running: a `__post_init__` may add attributes that are not fields.
_under_construction: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar(
    "_under_construction", default=frozenset()
)


def as_constructor(method: Callable[..., None]) -> Callable[..., None]:
    """Let a method of a config, such as `__post_init__`, add attributes that are not fields, and check them after it.

    The types of the fields are checked when all is done, since such a method may convert what it is given. If it fails
    on a value of a wrong type, that is what the error says.
    """

    @functools.wraps(method)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        if id(self) in _under_construction.get():  # of a base class; the outermost one checks
            method(self, *args, **kwargs)
            return
        token = _under_construction.set(_under_construction.get() | {id(self)})
        try:
            method(self, *args, **kwargs)
        except TracksideError:
            raise
        except Exception as error:
            _check_after(self, error)
            raise
        finally:
            _under_construction.reset(token)
        check_fields(self)

    return construct


def _check_after(config: Any, failure: Exception) -> None:
    try:
        check_fields(config)
    except ConfigError as error:
        raise error from failure


def check_assigned(config: Any, name: str, value: Any) -> None:
    """Refuse a value of a wrong type for a field that has a value already; a constructor may give it any.

    Raises:
        ConfigError: It names the field and the value.
    """
    if name in getattr(config, "__dict__", ()) and id(config) not in _under_construction.get():
        check_field(config, name, value)


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


_NUMBERS = {Kind.BOOL, Kind.INT, Kind.FLOAT}
_LOOSE = {Kind.ANY, Kind.OBJECT, Kind.UNSUPPORTED}


def as_declared(config: Any, name: str, value: Any) -> Any:
    """The value to store, so that it equals what is read back.

    A tuple becomes a list where only a list is declared, a path text where only text is, and an array without
    dimensions a number where one is.
    """
    is_tuple, is_path, is_array = (
        type(value) is tuple,
        isinstance(value, os.PathLike),
        getattr(value, "ndim", None) == 0,
    )
    if not (is_tuple or is_path or is_array) or name not in getattr(config, "__dataclass_fields__", ()):
        return value
    hints = declared_hints(type(config))
    kinds = {kind_of(member) for member in members_of(hints[name])} if name in hints else _LOOSE
    if kinds & _LOOSE:
        return value
    if is_tuple:
        return list(value) if Kind.LIST in kinds and Kind.TUPLE not in kinds else value
    if is_path:
        return os.fspath(value) if Kind.STR in kinds and Kind.PATH not in kinds else value
    return to_plain_number(value) if kinds & _NUMBERS else value
