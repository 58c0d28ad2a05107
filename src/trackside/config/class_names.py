"""The `"__class__"` of a config: which class a name means for a field, and which name a class is written with."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from trackside.config.registry import config_name, config_names, find_configs, is_config_name, qualified_name
from trackside.config.unions import CLASS_KEY
from trackside.config.wording import did_you_mean, join, listed, shown
from trackside.errors import ConfigError


def read_class_name(declared: type, data: Mapping[Any, Any], path: str, *, is_strict: bool) -> tuple[type, str | None]:
    """The class to build from a config's data.

    Args:
        declared: The class that the field declares. It is also used if the data names none.
        data: The fields.
        path: Where the data is, for messages.
        is_strict: Refuse names that no config class has, instead of using the declared class.

    Returns:
        A dataclass that is `declared` or derives from it, and a warning if it is not the one that the data names.
    """
    path = join(path, CLASS_KEY)
    if CLASS_KEY not in data:
        return _with_fields(declared, declared, path), None
    name = data[CLASS_KEY]
    if not isinstance(name, str):
        raise ConfigError(f"{path}: expected the name of a config class, got {shown(name)}")
    found = find_configs(name, declared)
    if len(found) > 1:
        raise ConfigError(f"{path}: {name!r} is ambiguous; write {' or '.join(map(qualified_name, found))}")
    if found:
        return _with_fields(found[0], declared, path), None
    return _fall_back(declared, name, path, is_strict=is_strict)


def write_class_name(cls: type, declared: type, path: str) -> str:
    """The name under which a field finds a class again: the class name, or the qualified name if that is ambiguous."""
    name = config_name(cls, declared)
    if name is None:
        raise ConfigError(f"{join(path, CLASS_KEY)}: {qualified_name(cls)} was redefined; create this config again")
    return name


def _fall_back(declared: type, name: str, path: str, *, is_strict: bool) -> tuple[type, str]:
    fitting = config_names(declared)
    if is_config_name(name):
        raise ConfigError(f"{path}: {name!r} is not a {declared.__name__}; expected one of {listed(fitting)}")
    if is_strict or not dataclasses.is_dataclass(declared):
        raise ConfigError(
            f"{path}: no config class is named {name!r}; expected one of {listed(fitting)}."
            f"{did_you_mean(name, fitting)} Import your own classes first"
        )
    return declared, f"{path}: no config class is named {name!r}, reading it as {declared.__name__}"


def _with_fields(cls: type, declared: type, path: str) -> type:
    if dataclasses.is_dataclass(cls):
        return cls
    raise ConfigError(
        f"{path}: {cls.__name__} is not a dataclass, so it has no fields; use one of {listed(config_names(declared))}"
    )
