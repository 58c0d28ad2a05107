"""Whether the values that a config was built with in Python are of the types that its fields declare.

What data may hold is allowed here, too, except for text that stands for something else. Beyond that, a value that
works in Python is allowed although it could not be written: any callable, a path for text, a number in an array, an
object in place of the config that it was built from. Where an annotation names a class that configs know nothing of,
any value is allowed.
"""

import numbers
import os
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

from trackside.config.hints import (
    Kind,
    base_class,
    canonical,
    describe,
    element_hints,
    field_hints,
    init_fields,
    key_and_value_hints,
    kind_of,
    members_of,
)
from trackside.config.leaves import READERS
from trackside.config.mismatch import Mismatch, fits_none, wrong
from trackside.config.registry import qualified_name
from trackside.config.unions import by_likeness
from trackside.config.wording import join
from trackside.errors import ConfigError

_ABSENT = object()
_TEXTS = (str, bytes, bytearray)


def check_fields(config: Any) -> None:
    """Refuse a config with a field of another type than it declares.

    A value that is the field's own default is left alone: `size: int = None` is common, if not quite right.

    Raises:
        ConfigError: It names the field and the value, in the words in which data is refused.
    """
    hints = declared_hints(type(config))
    fields = init_fields(type(config)) if hints else {}
    for name, field in fields.items():
        value = getattr(config, name, _ABSENT)
        if name in hints and value is not _ABSENT and value is not field.default:
            check_value(hints[name], value, name)


def check_field(config: Any, name: str, value: Any) -> None:
    """Refuse a value for one field of a config, as `check_fields` does."""
    field = init_fields(type(config)).get(name)
    hints = declared_hints(type(config))
    if field is not None and name in hints and value is not field.default:
        check_value(hints[name], value, name)


def check_types(function: Callable[..., Any], **arguments: Any) -> None:
    """Refuse arguments of other types than a function declares.

    Args:
        function: The function that was called; what its annotations name has to be known to its module.
        **arguments: What it was given.

    Raises:
        ConfigError: It names the argument and the value.
    """
    hints = get_type_hints(function)
    for name, value in arguments.items():
        check_value(hints[name], value, name)


def declared_hints(cls: type) -> dict[str, Any]:
    """The annotations by field, as far as they can be resolved: of the class, or of the nearest base that allows it."""
    for parent in cls.__mro__:
        if "__dataclass_fields__" not in vars(parent):
            continue
        try:
            return field_hints(parent)
        except ConfigError:  # a name that is known to type checkers only; writing the config will say so
            continue
    return {}


def check_value(hint: Any, value: Any, path: str) -> None:
    """Refuse a value that an annotation does not allow.

    Args:
        hint: Any annotation.
        value: What was given.
        path: Where, for the error.

    Raises:
        ConfigError: It names the path, the value and what was expected.
    """
    if type(value) is hint and not isinstance(value, float):
        return
    hint = canonical(hint)
    kind = kind_of(hint)
    try:
        if kind in _CHECKS:
            _CHECKS[kind](hint, value, path)
        elif kind in READERS:
            READERS[kind](hint, to_plain_number(value))
    except Mismatch as mismatch:
        raise wrong(path, hint, value, mismatch.expected) from None
    except TypeError:  # an annotation that cannot be asked, such as one of a protocol
        return


def to_plain_number(value: Any) -> Any:
    """The number of an array without dimensions, as Python has it; anything else as it is."""
    if isinstance(value, numbers.Number) or getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except Exception:  # an array that has no value yet, as while JAX traces
        return value


def _float(hint: Any, value: Any, path: str) -> None:
    if isinstance(value, str):  # "nan" stands for a number in data only
        raise Mismatch("float")
    READERS[Kind.FLOAT](hint, to_plain_number(value))


def _text(hint: Any, value: Any, path: str) -> None:
    if not isinstance(value, str | os.PathLike):
        raise Mismatch("str")


def _literal(hint: Any, value: Any, path: str) -> None:
    value = to_plain_number(value)
    if not any(isinstance(value, type(option)) and value == option for option in get_args(hint)):
        READERS[Kind.LITERAL](hint, value)


def _union(hint: Any, value: Any, path: str) -> None:
    members = members_of(hint)
    errors = []
    for member in by_likeness(members, value):
        try:
            check_value(member, value, path)
            return
        except ConfigError as error:
            errors.append(error)
    raise fits_none(members, value, path, errors)


def _elements(hint: Any, value: Any, path: str) -> None:
    base = base_class(hint)
    is_sequence = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    is_set = isinstance(value, set | frozenset) and base in (set, frozenset)
    if isinstance(value, (*_TEXTS, Mapping)) or not (is_sequence or is_set):
        raise Mismatch(f"a list ({describe(hint)})")
    if not isinstance(value, list | tuple | set | frozenset):
        return
    hints = element_hints(hint, len(value))
    if hints is None:
        raise Mismatch(f"{describe(hint)}, which has a different length")
    for index, (item_hint, item) in enumerate(zip(hints, value, strict=True)):
        check_value(item_hint, item, f"{path}[{index}]")


def _mapping(hint: Any, value: Any, path: str) -> None:
    if not isinstance(value, Mapping):
        raise Mismatch(f"a mapping ({describe(hint)})")
    key_hint, value_hint = key_and_value_hints(hint)
    for key, item in value.items():
        check_value(key_hint, key, join(path, key))
        check_value(value_hint, item, join(path, key))


def _record(hint: Any, value: Any, path: str) -> None:
    declared = base_class(hint)
    if _is_a(value, declared) or _is_a(getattr(value, "config", None), declared):
        return
    raise Mismatch(describe(hint))


def _is_a(value: Any, declared: type) -> bool:
    # By name as well: a notebook cell that runs again defines its classes again.
    names = {qualified_name(parent) for parent in type(value).__mro__}
    return isinstance(value, declared) or qualified_name(declared) in names


def _class(hint: Any, value: Any, path: str) -> None:
    if not isinstance(value, type):
        raise Mismatch(f"a class ({describe(hint)})")
    READERS[Kind.CLASS](hint, value)


def _callable(hint: Any, value: Any, path: str) -> None:
    # Not only what can be called: some models cannot, and are given where something that builds one is declared.
    if value is None or isinstance(value, (*_TEXTS, numbers.Number)):
        raise Mismatch("a function or class")


_CHECKS: dict[Kind, Callable[[Any, Any, str], None]] = {
    Kind.FLOAT: _float,
    Kind.STR: _text,
    Kind.LITERAL: _literal,
    Kind.UNION: _union,
    Kind.LIST: _elements,
    Kind.TUPLE: _elements,
    Kind.SET: _elements,
    Kind.MAPPING: _mapping,
    Kind.RECORD: _record,
    Kind.CLASS: _class,
    Kind.CALLABLE: _callable,
}
