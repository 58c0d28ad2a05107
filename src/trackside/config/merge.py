"""Data over a config: fields that the data names are replaced, the others stay."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from trackside.config.hints import field_hints, init_fields
from trackside.config.parse import Parser, construct
from trackside.config.registry import find_configs
from trackside.config.unions import CLASS_KEY
from trackside.config.wording import did_you_mean, join, listed, shown
from trackside.errors import ConfigError


def merge(parser: Parser, base: Any, data: Mapping[str, Any], path: str = "") -> Any:
    """A copy of a config, or of several by name, with the fields that the data names replaced.

    Nested configs are merged in the same way, unless the data names another class for them. Everything else, lists and
    dicts included, is replaced as a whole.

    Args:
        parser: How the data is read.
        base: A config, or a mapping of configs by name.
        data: The fields to replace.
        path: Where the data is, for messages.

    Returns:
        A new config or dict; `base` is unchanged.

    Raises:
        ConfigError: If the data does not fit, with the path of the field.
    """
    if isinstance(base, Mapping):
        return {**base, **{name: _merge_entry(parser, base, name, below) for name, below in data.items()}}
    if not dataclasses.is_dataclass(base) or isinstance(base, type):
        raise ConfigError(f"base: expected a config or a mapping of configs, got {shown(base)}")
    cls = type(base)
    hints, known = field_hints(cls), init_fields(cls)
    parser.check_keys(cls, data, path)
    values = {
        name: _merge_field(parser, hints[name], getattr(base, name), data[name], join(path, name))
        for name in known
        if name in data
    }
    return construct(cls, (), {**{name: getattr(base, name) for name in known}, **values}, path)


def _merge_entry(parser: Parser, base: Mapping[str, Any], name: str, data: Any) -> Any:
    if name not in base:
        raise ConfigError(
            f"{name}: there is no config of this name; there are {listed(base)}.{did_you_mean(name, base)}"
        )
    return _merge_field(parser, type(base[name]), base[name], data, name)


def _merge_field(parser: Parser, hint: Any, current: Any, data: Any, path: str) -> Any:
    if dataclasses.is_dataclass(current) and isinstance(data, Mapping) and _is_of(type(current), data):
        return merge(parser, current, data, path)
    return parser.parse(hint, data, path)


def _is_of(cls: type, data: Mapping[str, Any]) -> bool:
    """Whether the data says nothing about its class, or that it is this one."""
    name = data.get(CLASS_KEY)
    return name is None or (isinstance(name, str) and cls in find_configs(name, cls))
