"""Fields that allow several types: which one a value belongs to, and how data says so if its form does not tell.

A tuple in a field annotated `list | tuple` or `Any` is written as `{"__as__": "tuple", "value": [...]}`.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from trackside.config.hints import Kind, base_class, describe, kind_of
from trackside.config.registry import Registered

CLASS_KEY = "__class__"
_AS_KEY = "__as__"
_VALUE_KEY = "value"

# What a field annotated `Any` can hold, by the exact type of the value.
_UNTYPED = {
    type(None): type(None),
    bool: bool,
    int: int,
    float: float,
    str: str,
    list: list[Any],
    dict: dict[Any, Any],
    tuple: tuple[Any, ...],
    set: set[Any],
    frozenset: frozenset[Any],
}
ANY_MEMBERS = (*_UNTYPED.values(), pathlib.Path, Registered)


def tagged(hint: Any, encoded: Any) -> dict[str, Any]:
    """JSON with a tag that says which annotation it was written for."""
    return {_AS_KEY: describe(hint), _VALUE_KEY: encoded}


def tag_of(data: Any, members: Sequence[Any]) -> Any:
    """The one of `members` that tagged data was written for, or None if it has no such tag."""
    if type(data) is not dict or data.keys() != {_AS_KEY, _VALUE_KEY}:
        return None
    return next((member for member in members if describe(member) == data[_AS_KEY]), None)


def untagged(data: Mapping[str, Any]) -> Any:
    """The data without its tag."""
    return data[_VALUE_KEY]


def names_class(data: Any) -> bool:
    """Whether data names its config class."""
    return isinstance(data, Mapping) and CLASS_KEY in data


def hint_of_value(value: Any) -> Any:
    """The annotation to write a value of an `Any` field with, or None if it cannot be written."""
    if isinstance(value, Registered):
        return Registered
    if isinstance(value, pathlib.Path):
        return pathlib.Path
    return _UNTYPED.get(type(value))


def hint_of_data(data: Any) -> Any:
    """The annotation to read data of an `Any` field with, or None if it is taken unchanged."""
    return Registered if names_class(data) else _UNTYPED.get(type(data))


def is_config(hint: Any) -> bool:
    """Whether an annotation asks for a config."""
    return kind_of(hint) is Kind.RECORD and issubclass(base_class(hint), Registered)


_SCALARS = {Kind.BOOL: bool, Kind.INT: int, Kind.FLOAT: float, Kind.STR: str}
_NEAREST = {**_SCALARS, Kind.NONE: type(None), Kind.LIST: list, Kind.TUPLE: tuple, Kind.MAPPING: dict}


def by_likeness(members: Sequence[Any], value: Any) -> list[Any]:
    """The members of a union in the order in which to try them: the type of the value first, constructors last."""
    fitting = [member for member in members if value is None or kind_of(member) is not Kind.NONE]
    return sorted(fitting, key=lambda member: _distance(kind_of(member), value))


def _distance(kind: Kind, value: Any) -> int:
    if kind is Kind.LITERAL or _NEAREST.get(kind) is type(value):
        return 0
    if kind is Kind.OBJECT:
        return 3
    return 2 if kind in _SCALARS else 1
