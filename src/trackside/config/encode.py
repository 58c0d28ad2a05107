"""From typed values to JSON. What would not be the same when read back is refused."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from trackside.config.class_names import write_class_name
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
from trackside.config.leaves import WRITERS
from trackside.config.mismatch import Mismatch
from trackside.config.parse import STRICT, Parser
from trackside.config.registry import Registered
from trackside.config.unions import ANY_MEMBERS, CLASS_KEY, by_likeness, hint_of_data, hint_of_value, tag_of, tagged
from trackside.config.wording import join, shown
from trackside.errors import ConfigError


def encode(hint: Any, value: Any, path: str = "") -> Any:
    """Write a value as JSON, such that reading it by the same annotation gives an equal value.

    Args:
        hint: The annotation of the field.
        value: What the field holds.
        path: Where the field is, for messages.

    Returns:
        Dicts, lists, strings, finite numbers, booleans and None.

    Raises:
        ConfigError: If the value cannot be written, with the path of the field.
    """
    hint = canonical(hint)
    kind = kind_of(hint)
    if kind in _COMPOUND:
        return _COMPOUND[kind](hint, value, path)
    if kind is Kind.UNSUPPORTED:
        raise _cannot_write(path, value, f"another annotation than {hint!r}")
    try:
        return WRITERS[kind](hint, value)
    except Mismatch as mismatch:
        raise _cannot_write(path, value, mismatch.expected) from None


def _any(hint: Any, value: Any, path: str) -> Any:
    hint = hint_of_value(value)
    if hint is None:
        raise _cannot_write(path, value, "JSON values, tuples, sets, paths or configs in a field without a type")
    encoded = encode(hint, value, path)
    if hint_of_data(encoded) == hint and tag_of(encoded, ANY_MEMBERS) is None:
        return encoded
    return tagged(hint, encoded)


def _union(hint: Any, value: Any, path: str) -> Any:
    members = members_of(hint)
    errors = []
    for member in by_likeness(members, value):
        try:
            encoded = encode(member, value, path)
        except ConfigError as error:
            errors.append(error)
            continue
        return _as_member(member, members, encoded, value, path)
    if len(errors) == 1:
        raise errors[0]
    raise _cannot_write(path, value, describe(hint))


def _as_member(member: Any, members: list[Any], encoded: Any, value: Any, path: str) -> Any:
    if encoded is None or (len(members) == 2 and type(None) in members and tag_of(encoded, members) is None):
        return encoded  # `X | None` cannot be mistaken for anything else
    for form in (encoded, tagged(member, encoded)):
        try:
            if Parser(STRICT).pick(members, form, path)[0] is member:
                return form
        except ConfigError:
            continue
    raise _cannot_write(
        path, value, f"one of {' | '.join(map(describe, members))} that can be distinguished from the others"
    )


def _elements(hint: Any, value: Any, path: str) -> list[Any]:
    base = base_class(hint)
    hints = element_hints(hint, len(value)) if isinstance(value, base) else None
    if hints is None:
        raise _cannot_write(path, value, describe(hint))
    pairs = enumerate(zip(hints, value, strict=True))
    items = [encode(item_hint, item, f"{path}[{index}]") for index, (item_hint, item) in pairs]
    # A set has another order in each process; the file must not.
    return sorted(items, key=json.dumps) if base in (set, frozenset) else items


def _mapping(hint: Any, value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _cannot_write(path, value, describe(hint))
    key_hint, value_hint = key_and_value_hints(hint)
    return {_key(key_hint, key, path): encode(value_hint, item, join(path, key)) for key, item in value.items()}


def _key(hint: Any, key: Any, path: str) -> str:
    encoded = encode(hint, key, join(path, key))
    text = encoded if isinstance(encoded, str) else json.dumps(encoded)
    back = Parser(STRICT).parse_key(hint, text, path)
    if type(back) is not type(key) or back != key:
        raise _cannot_write(join(path, key), key, f"a key that can be read back from its text {text!r}")
    return text


def _record(hint: Any, value: Any, path: str) -> dict[str, Any]:
    declared, cls = base_class(hint), type(value)
    if not isinstance(value, declared):
        raise _cannot_write(path, value, describe(hint))
    if not dataclasses.is_dataclass(cls):
        raise _cannot_write(path, value, f"a dataclass; decorate {cls.__name__} with @dataclass")
    head = {CLASS_KEY: write_class_name(cls, declared, path)} if isinstance(value, Registered) else {}
    if not head and cls is not declared:
        raise _cannot_write(path, value, f"exactly {declared.__name__}; only configs are read back as a subclass")
    hints = field_hints(cls)
    return head | {name: encode(hints[name], getattr(value, name), join(path, name)) for name in init_fields(cls)}


def _cannot_write(path: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(f"{path or type(value).__name__}: cannot write {shown(value)}, expected {expected}")


_COMPOUND: dict[Kind, Callable[[Any, Any, str], Any]] = {
    Kind.ANY: _any,
    Kind.UNION: _union,
    Kind.LIST: _elements,
    Kind.TUPLE: _elements,
    Kind.SET: _elements,
    Kind.MAPPING: _mapping,
    Kind.RECORD: _record,
}
