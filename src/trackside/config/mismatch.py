"""A value that is not what an annotation asks for: the signal inside the package, and the error that users read."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from trackside.config.hints import Kind, canonical, describe, element_hints, kind_of
from trackside.config.wording import did_you_mean, shown
from trackside.errors import ConfigError


class Mismatch(Exception):  # noqa: N818 - never seen by users: it becomes a ConfigError with the field's path
    """The signal between a value's codec, which knows what it expects, and its caller, which knows the field.

    Args:
        expected: What would have been right, as it should read after "expected".
    """

    def __init__(self, expected: str):
        super().__init__(expected)
        self.expected = expected


def wrong(path: str, hint: Any, value: Any, expected: str) -> ConfigError:
    """The error for a value that one annotation does not allow, with what was probably meant."""
    return ConfigError(f"{path or describe(hint)}: expected {expected}, got {shown(value)}{_probably(hint, value)}")


def fits_none(members: Sequence[Any], value: Any, path: str, errors: Sequence[ConfigError]) -> ConfigError:
    """The error for a value that no member of a union allows.

    Args:
        members: The members.
        value: The value.
        path: Where it is.
        errors: What is wrong for the members that it was tried as.
    """
    if len(errors) == 1:
        return errors[0]
    expected = " | ".join(map(describe, members))
    details = "".join(f"\n  {error}" for error in errors)
    return ConfigError(f"{path or expected}: expected {expected}, got {shown(value)}{details}")


def _probably(hint: Any, value: Any) -> str:
    """What to write instead, if the value leaves little doubt; empty otherwise."""
    meant = _MEANT.get(kind_of(hint))
    return "" if meant is None else meant(hint, value)


def _number(hint: Any, value: Any) -> str:
    try:
        number = json.loads(value) if isinstance(value, str) else value
        meant = hint(number)
        return f"; write {meant!r}" if type(number) in (int, float) and meant == number else ""
    except (TypeError, ValueError, OverflowError):
        return ""


def _truth(hint: Any, value: Any) -> str:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return f"; write {value.capitalize()}"
    return f"; write {bool(value)}" if type(value) is int and value in (0, 1) else ""


def _list(hint: Any, value: Any) -> str:
    item = canonical((element_hints(hint, 1) or [Any])[0])
    return f"; write {shown([value])}" if isinstance(item, type) and isinstance(value, item) else ""


def _instance(hint: Any, value: Any) -> str:
    if isinstance(value, type):
        return f"; write {value.__name__}(...)"
    return f"; write {describe(hint)}(...)" if isinstance(value, Mapping) else ""


def _option(hint: Any, value: Any) -> str:
    suggestion = did_you_mean(value, [option for option in get_args(hint) if isinstance(option, str)])
    return f".{suggestion}" if suggestion and isinstance(value, str) else ""


_MEANT: dict[Kind, Callable[[Any, Any], str]] = {
    Kind.INT: _number,
    Kind.FLOAT: _number,
    Kind.BOOL: _truth,
    Kind.LIST: _list,
    Kind.LITERAL: _option,
    Kind.RECORD: _instance,
}
