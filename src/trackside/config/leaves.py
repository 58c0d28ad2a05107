"""Single values: how each type is written as JSON and read back.

A writer refuses what its reader would not return, so that nothing changes silently.
"""

import enum
import math
import numbers
import os
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any, get_args

from trackside.config.dtypes import read_dtype, write_dtype
from trackside.config.hints import Kind, base_class, describe
from trackside.config.mismatch import Mismatch
from trackside.config.references import read_callable, read_class, write_callable, write_class
from trackside.text import NON_FINITE


def _none(hint: Any, value: Any) -> None:
    if value is not None:
        raise Mismatch("None")


def _bool(hint: Any, value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    if isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_)):
        return bool(value)
    raise Mismatch("bool")


def _int(hint: Any, value: Any) -> int:
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    raise Mismatch("int")


def _str(hint: Any, value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)  # without the subclass, e.g. of a string enum
    raise Mismatch("str")


def _write_float(hint: Any, value: Any) -> float | str:
    number = _to_float(value)
    if not math.isfinite(number):
        return str(number)
    if number != value:
        raise Mismatch("a number that a float can hold")
    return number


def _read_float(hint: Any, data: Any) -> float:
    if isinstance(data, str) and data in NON_FINITE:
        return NON_FINITE[data]
    return _to_float(data)


def _to_float(value: Any) -> float:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise Mismatch("float")
    try:
        return float(value)
    except OverflowError:
        raise Mismatch("a number that a float can hold") from None


def _write_path(hint: Any, value: Any) -> str:
    text = os.fspath(value) if isinstance(value, base_class(hint)) else None
    if not isinstance(text, str) or _read_path(hint, text) != value:
        raise Mismatch(f"{describe(hint)}; wrap it in pathlib.Path")
    return text


def _read_path(hint: Any, data: Any) -> Any:
    base = base_class(hint)
    if isinstance(data, base):
        return data
    if not isinstance(data, str):
        raise Mismatch(f"a path ({describe(hint)})")
    return pathlib.Path(data) if base is os.PathLike else base(data)


def _write_enum(hint: Any, value: Any) -> Any:
    if isinstance(value, hint):
        plain = isinstance(value.value, str | int | float)
        text = value.value if plain else value.name
        if _read_enum(hint, text) is value:
            return text
    raise Mismatch(_choices(hint))


def _read_enum(hint: Any, data: Any) -> Any:
    if isinstance(data, hint):
        return data
    try:
        member = hint(data)
    except Exception:  # a ValueError, or whatever the enum's own `_missing_` raises
        member = hint.__members__.get(data) if isinstance(data, str) else None
        if member is None:
            raise Mismatch(_choices(hint)) from None
        return member
    if type(member.value) is not type(data):  # True is not 1
        raise Mismatch(_choices(hint))
    return member


def _choices(hint: type[enum.Enum]) -> str:
    return "one of " + ", ".join(repr(member.value) for member in hint)


def _write_literal(hint: Any, value: Any) -> Any:
    for option in get_args(hint):
        if _same(option, value):
            text = _literal_text(option)
            if _read_literal(hint, text) is option:
                return text
    raise Mismatch(_options(hint))


def _read_literal(hint: Any, data: Any) -> Any:
    for option in get_args(hint):
        if _same(option, data) or _same(_literal_text(option), data):
            return option
    raise Mismatch(_options(hint))


def _literal_text(option: Any) -> Any:
    return _write_enum(type(option), option) if isinstance(option, enum.Enum) else option


def _options(hint: Any) -> str:
    return "one of " + ", ".join(map(repr, get_args(hint)))


def _same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and first == second


def _write_pattern(hint: Any, value: Any) -> Any:
    if not isinstance(value, re.Pattern) or not isinstance(value.pattern, str):
        raise Mismatch("a compiled regular expression of text")
    if re.compile(value.pattern).flags == value.flags:
        return value.pattern
    return {"pattern": value.pattern, "flags": value.flags}


def _read_pattern(hint: Any, data: Any) -> re.Pattern[str]:
    if isinstance(data, re.Pattern):
        return data
    parts = {"pattern": data, "flags": 0} if isinstance(data, str) else data
    try:
        return re.compile(parts["pattern"], parts["flags"])
    except (re.error, TypeError, KeyError, ValueError):
        raise Mismatch("a regular expression") from None


def _write_nothing(hint: Any, value: Any) -> Any:
    raise Mismatch("a type that JSON can hold; an object of another class cannot be read back")


WRITERS: dict[Kind, Callable[[Any, Any], Any]] = {
    Kind.NONE: _none,
    Kind.BOOL: _bool,
    Kind.INT: _int,
    Kind.FLOAT: _write_float,
    Kind.STR: _str,
    Kind.LITERAL: _write_literal,
    Kind.ENUM: _write_enum,
    Kind.PATH: _write_path,
    Kind.PATTERN: _write_pattern,
    Kind.DTYPE: write_dtype,
    Kind.CLASS: write_class,
    Kind.CALLABLE: write_callable,
    Kind.OBJECT: _write_nothing,
}
READERS: dict[Kind, Callable[[Any, Any], Any]] = {
    Kind.NONE: _none,
    Kind.BOOL: _bool,
    Kind.INT: _int,
    Kind.FLOAT: _read_float,
    Kind.STR: _str,
    Kind.LITERAL: _read_literal,
    Kind.ENUM: _read_enum,
    Kind.PATH: _read_path,
    Kind.PATTERN: _read_pattern,
    Kind.DTYPE: read_dtype,
    Kind.CLASS: read_class,
    Kind.CALLABLE: read_callable,
}
