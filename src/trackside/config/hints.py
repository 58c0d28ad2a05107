"""What an annotation asks for. Reading and writing a field both start from this."""

import collections.abc
import dataclasses
import enum
import functools
import os
import pathlib
import re
import sys
import types
import typing
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from trackside.config.registry import Registered, find_configs, qualified_name
from trackside.errors import ConfigError


class Kind(enum.Enum):
    """The ways in which a field is read and written."""

    ANY = enum.auto()
    NONE = enum.auto()
    UNION = enum.auto()
    LITERAL = enum.auto()
    BOOL = enum.auto()
    INT = enum.auto()
    FLOAT = enum.auto()
    STR = enum.auto()
    LIST = enum.auto()
    TUPLE = enum.auto()
    SET = enum.auto()
    MAPPING = enum.auto()
    RECORD = enum.auto()
    """A config, or any other dataclass."""
    ENUM = enum.auto()
    PATH = enum.auto()
    PATTERN = enum.auto()
    DTYPE = enum.auto()
    CLASS = enum.auto()
    CALLABLE = enum.auto()
    OBJECT = enum.auto()
    """Any other class; it is built by calling it."""
    UNSUPPORTED = enum.auto()


_EXACT = {
    type(None): Kind.NONE,
    bool: Kind.BOOL,
    int: Kind.INT,
    float: Kind.FLOAT,
    str: Kind.STR,
    list: Kind.LIST,
    tuple: Kind.TUPLE,
    set: Kind.SET,
    frozenset: Kind.SET,
    dict: Kind.MAPPING,
    type: Kind.CLASS,
    collections.abc.Callable: Kind.CALLABLE,
}
_DERIVED: tuple[tuple[type, Kind], ...] = (
    (enum.Enum, Kind.ENUM),
    (pathlib.PurePath, Kind.PATH),
    (os.PathLike, Kind.PATH),
    (re.Pattern, Kind.PATTERN),
)
_SEQUENCES = (collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS = (collections.abc.Mapping, collections.abc.MutableMapping)


def canonical(hint: Any) -> Any:
    """The annotation without wrappers, and with concrete containers in place of abstract ones."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Annotated, Final):
        return canonical(args[0])
    if isinstance(hint, typing.NewType):
        return canonical(hint.__supertype__)
    if isinstance(hint, typing.TypeVar):
        return canonical(Any if hint.__bound__ is None else hint.__bound__)
    if type(hint).__name__ == "TypeAliasType":  # `type X = ...`, from Python 3.12 on
        return canonical(hint.__value__)
    if hint is object or (origin in (Union, types.UnionType) and Any in args):
        return Any
    return _concrete(hint, origin or hint, args)


def _concrete(hint: Any, base: Any, args: tuple[Any, ...]) -> Any:
    item = args[0] if args else Any
    if base in _SEQUENCES:
        return list[item] | tuple[item, ...]
    if base is collections.abc.Set:
        return set[item] | frozenset[item]
    if base in _MAPPINGS or typing.is_typeddict(base):
        return dict[args[0], args[1]] if args else dict
    if hint is typing.Tuple:  # noqa: UP006 - it looks like `tuple[()]` otherwise
        return tuple
    return hint


def base_class(hint: Any) -> Any:
    """The class behind an annotation, without its arguments."""
    return get_origin(hint) or hint


def kind_of(hint: Any) -> Kind:
    """How a field with this canonical annotation is read and written."""
    base = base_class(hint)
    if hint is Any:
        return Kind.ANY
    if hint is None:
        return Kind.NONE
    if base in (Union, types.UnionType):
        return Kind.UNION
    if base is Literal:
        return Kind.LITERAL
    if not isinstance(base, type):
        return Kind.UNSUPPORTED
    return _EXACT.get(base) or _kind_of_class(base)


def _kind_of_class(base: type) -> Kind:
    if issubclass(base, Registered) or dataclasses.is_dataclass(base):
        return Kind.RECORD
    # Until numpy is imported nothing can be annotated with its dtype.
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(base, numpy.dtype):
        return Kind.DTYPE
    if getattr(base, "_is_protocol", False) and "__call__" in vars(base):
        return Kind.CALLABLE
    return next((kind for parent, kind in _DERIVED if issubclass(base, parent)), Kind.OBJECT)


def members_of(hint: Any) -> list[Any]:
    """The canonical members of a union, with nested unions flattened. Any other annotation is its own only member."""
    hint = canonical(hint)
    if kind_of(hint) is not Kind.UNION:
        return [hint]
    return [member for arg in get_args(hint) for member in members_of(arg)]


def element_hints(hint: Any, num_elements: int) -> list[Any] | None:
    """One annotation per element of a list, tuple or set; None if the tuple has another length."""
    args = get_args(hint)
    if get_origin(hint) is not tuple or (len(args) == 2 and args[1] is Ellipsis):
        return [args[0] if args else Any] * num_elements
    return list(args) if len(args) == num_elements else None


def key_and_value_hints(hint: Any) -> tuple[Any, Any]:
    """The annotations of a mapping's keys and values."""
    return get_args(hint) or (Any, Any)


def describe(hint: Any) -> str:
    """An annotation as it is written in code, without module names."""
    if isinstance(hint, list):
        return f"[{', '.join(map(describe, hint))}]"
    if hint in (None, type(None)):
        return "None"
    args = get_args(hint)
    if kind_of(hint) is Kind.UNION:
        return " | ".join(map(describe, args))
    if kind_of(hint) is Kind.LITERAL:
        return f"Literal{list(args)}"
    name = "..." if hint is Ellipsis else getattr(base_class(hint), "__name__", str(hint))
    if all(arg is Any or arg is Ellipsis for arg in args):
        return name
    return f"{name}[{', '.join(map(describe, args))}]"


@functools.cache
def field_hints(cls: type) -> dict[str, Any]:
    """The annotations of a dataclass by field, strings resolved.

    Raises:
        ConfigError: If an annotation names something that cannot be found from the class.
    """
    found: dict[str, Any] = {}
    while True:
        try:
            return typing.get_type_hints(cls, localns=found or None)
        except NameError as error:
            name = error.name or str(error)
            if name in found or (known := _visible_from(cls, name)) is None:
                raise ConfigError(
                    f"{qualified_name(cls)}: its annotations name {name!r}, which cannot be found; define or import "
                    f"it at the top of {cls.__module__}, outside of functions and `if TYPE_CHECKING`"
                ) from error
            found[name] = known
        except Exception as error:
            raise ConfigError(f"{qualified_name(cls)}: its annotations cannot be evaluated: {error}") from error


def _visible_from(cls: type, name: str) -> Any:
    # For a class inside a function: names from its body, and configs of the same module.
    for parent in cls.__mro__:
        if name in vars(parent):
            return vars(parent)[name]
    configs = [config for config in find_configs(name, Registered) if config.__module__ == cls.__module__]
    scope = cls.__qualname__.rpartition(".")[0]
    neighbours = [config for config in configs if config.__qualname__.rpartition(".")[0] == scope]
    matches = neighbours or configs
    return matches[0] if len(matches) == 1 else None


@functools.cache
def init_fields(cls: Any) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a dataclass that its constructor takes, by name."""
    return {field.name: field for field in dataclasses.fields(cls) if field.init}
