"""Configs in JSON and YAML files."""

import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trackside.config.base import ConfigDict
from trackside.config.encode import encode
from trackside.config.merge import merge
from trackside.config.parse import ParseOptions, Parser, parse
from trackside.config.wording import listed, shown
from trackside.config.yaml_text import dump_yaml, load_yaml
from trackside.errors import ConfigError
from trackside.files import write_atomically

T = TypeVar("T")


def _dump_json(data: Any) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


_LOADERS: dict[str, Callable[[str], Any]] = {".json": json.loads, ".yaml": load_yaml, ".yml": load_yaml}
_DUMPERS: dict[str, Callable[[Any], str]] = {".json": _dump_json, ".yaml": dump_yaml, ".yml": dump_yaml}


def load_config(
    config_class: type[T],
    path: str | os.PathLike[str],
    strict_classname_parsing: bool = True,
    ignore_extensive_attributes: bool = False,
    none_to_zero_for_ints: bool = False,
    base: T | None = None,
) -> T:
    """Read a config from a file, by itself or over a config that is there already.

    Args:
        config_class: What the file describes; `dict` for a file of several configs by name.
        path: A `.json`, `.yaml` or `.yml` file.
        strict_classname_parsing: As in `ConfigDict.from_dict`.
        ignore_extensive_attributes: As in `ConfigDict.from_dict`.
        none_to_zero_for_ints: As in `ConfigDict.from_dict`.
        base: A config, or a dict of configs by name, whose fields the file replaces. Fields that the file leaves out
            keep their values, also in nested configs; a list or a dict in the file replaces the whole field.

    Returns:
        The config; `base` is unchanged.

    Raises:
        ConfigError: If the file is missing, has another suffix, is malformed or does not fit. It names the file.
    """
    options = ParseOptions(strict_classname_parsing, ignore_extensive_attributes, none_to_zero_for_ints)
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"path: expected the path of a file, got {shown(path)}; write load_config(MyConfig, path)")
    path = pathlib.Path(path)
    data = _read(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of fields at the top level, got {shown(data)}")
    if base is not None and not isinstance(base, config_class):
        raise ConfigError(f"base: expected {config_class.__name__}, got {shown(base)}")
    try:
        return parse(config_class, data, options) if base is None else _merge(base, data, options)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _merge(base: Any, data: dict[str, Any], options: ParseOptions) -> Any:
    parser = Parser(options)
    merged = merge(parser, base, data)
    parser.log_notes()
    return merged


def save_config(config: ConfigDict | Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a config to a file. The file is replaced completely or not at all.

    Args:
        config: The config, or several by name; `load_config(dict, path)` reads the latter.
        path: A `.json`, `.yaml` or `.yml` file. Its folder is created if it does not exist.

    Raises:
        ConfigError: If the config cannot be written or the file has another suffix.
    """
    path = pathlib.Path(path)
    dump = _by_suffix(_DUMPERS, path)
    if not isinstance(config, ConfigDict | Mapping):
        raise ConfigError(f"save_config: expected a config or a mapping of configs, got {shown(config)}")
    data = config.to_dict() if isinstance(config, ConfigDict) else encode(dict[str, Any], dict(config))
    write_atomically(path, dump(data))


def _read(path: pathlib.Path) -> Any:
    load = _by_suffix(_LOADERS, path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: file not found") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        return load(text)
    except Exception as error:  # a JSONDecodeError, a YAMLError, or what a YAML scalar of the wrong form raises
        raise ConfigError(f"{path}: malformed: {error}") from error


def _by_suffix(table: Mapping[str, T], path: pathlib.Path) -> T:
    if path.suffix.lower() not in table:
        raise ConfigError(f"{path}: expected a file that ends in {listed(table)}, got {path.suffix!r}")
    return table[path.suffix.lower()]
