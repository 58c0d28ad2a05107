"""A config in the forms that people have it in."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from trackside.config import ConfigDict
from trackside.errors import ConfigError


def plain_config(config: Any) -> ConfigDict | Mapping[str, Any]:
    """A config as values by name.

    Args:
        config: A dict, a dataclass, or a namespace of arguments.

    Raises:
        ConfigError: It is something else.
    """
    if isinstance(config, ConfigDict | Mapping):
        return config
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dataclasses.asdict(config)
    if isinstance(config, type):
        raise ConfigError(f"config: expected a config, got the class {config.__name__}; write {config.__name__}(...)")
    try:
        return dict(vars(config))
    except TypeError:
        raise ConfigError(f"config: expected a dict, a dataclass or a namespace of arguments, got {config!r}") from None
