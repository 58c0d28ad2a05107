"""Changes to configs from the command line: `trainer.seed=1`, `callbacks[0].patience=3`."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from trackside.config.hints import (
    Kind,
    base_class,
    element_hints,
    field_hints,
    init_fields,
    key_and_value_hints,
    kind_of,
    members_of,
)
from trackside.config.parse import STRICT, Parser, parse
from trackside.config.wording import did_you_mean, join, listed, shown
from trackside.config.yaml_text import load_yaml, load_yaml_as_text
from trackside.errors import ConfigError

T = TypeVar("T")
Step = str | int

_STEP = re.compile(r"""(?P<name>[^.\[\]'"]+)|\[(?P<index>\d+)\]|\[(?P<quote>['"])(?P<key>.*?)(?P=quote)\]""")


@dataclasses.dataclass
class _Change:
    """What the overrides say about one field and what is below it."""

    source: str = ""
    text: str | None = None
    below: "dict[Step, _Change]" = dataclasses.field(default_factory=dict)

    def error(self, message: str) -> ConfigError:
        return ConfigError(f"override {self.source!r}: {message}")


def apply_overrides(config: T, overrides: Iterable[str]) -> T:
    """Change fields of configs by text, as a command line gives it.

    A value is read as YAML and then as the field's type: `debug=true` is a bool, `name=123` is a string in a string
    field, `lr=1e-3` is a float, `x=null` is None and `sizes=[1, 2]` is a list. A nested config that is None is created
    from its defaults. All changes to a config are made together, so its own checks see only the final result.

    Args:
        config: A config, or a mapping of configs by name.
        overrides: Strings `path=value`, or one of them. If two set the same field, the later one wins.

    Returns:
        A new config or dict; the given one is unchanged.

    Raises:
        ConfigError: If an override cannot be applied; it names the override and the fields that exist.
    """
    changes = _Change()
    for override in [overrides] if isinstance(overrides, str) else overrides:
        _record_change(changes, override)
    if isinstance(config, Mapping):
        return _change_top_level(config, changes)  # pyright: ignore[reportReturnType]
    if not dataclasses.is_dataclass(config):
        raise ConfigError(f"apply_overrides: expected a config or a mapping of configs, got {shown(config)}")
    return _apply(type(config), config, changes, "")


def _record_change(changes: _Change, override: str) -> None:
    target, equals, text = str(override).partition("=")
    steps = _split(target.strip())
    if not equals or not steps:
        raise ConfigError(
            f"override {override!r}: expected path=value, such as trainer.seed=1 or callbacks[0].mode=max"
        )
    change = changes
    for step in steps:
        change = change.below.setdefault(step, _Change())
        change.source = override
    change.text = text.strip()
    change.below.clear()


def _split(target: str) -> list[Step]:
    """The steps of a path; empty if it is malformed."""
    steps: list[Step] = []
    position = 0
    while position < len(target):
        if steps and target[position] == ".":
            position += 1
        match = _STEP.match(target, position)
        if match is None:
            return []
        steps.append(int(match["index"]) if match["index"] else match["name"] or match["key"])
        position = match.end()
    return steps


def _change_top_level(configs: Mapping[str, Any], changes: _Change) -> dict[str, Any]:
    result = dict(configs)
    for name, change in changes.below.items():
        if name not in result:
            raise change.error(f"there is no config {name!r}; there are {listed(result)}.{did_you_mean(name, result)}")
        hint = type(result[name]) if dataclasses.is_dataclass(result[name]) else Any
        result[str(name)] = _apply(hint, result[name], change, str(name))
    return result


def _apply(hint: Any, current: Any, change: _Change, path: str) -> Any:
    if change.text is not None:
        current = _read(hint, change, change.text, path)
        if not change.below:
            return current
    if current is None:
        return _apply_to_none(hint, change, path)
    if dataclasses.is_dataclass(current):
        return _apply_to_record(type(current), current, change, path)
    if isinstance(current, list | tuple):
        return _apply_to_elements(hint, current, change, path)
    if isinstance(current, dict):
        return _apply_to_mapping(hint, current, change, path)
    raise change.error(f"{path} is {shown(current)}, which has no fields")


def _apply_to_none(hint: Any, change: _Change, path: str) -> Any:
    members = members_of(hint)
    records = [base_class(member) for member in members if kind_of(member) is Kind.RECORD]
    if len(records) == 1 and dataclasses.is_dataclass(records[0]):
        return _apply_to_record(records[0], None, change, path)
    if any(kind_of(member) is Kind.MAPPING for member in members):
        return _apply_to_mapping(hint, {}, change, path)
    raise change.error(f"{path} is None; set it as a whole first, e.g. {path}={{__class__: ClassName}}")


def _apply_to_record(cls: Any, current: Any, change: _Change, path: str) -> Any:
    hints, known = field_hints(cls), init_fields(cls)
    values = {}
    for name, below in change.below.items():
        if name not in known:
            raise below.error(
                f"{cls.__name__} has no field {name!r}; it has {listed(known)}.{did_you_mean(name, known)}"
            )
        before = _default(known[name]) if current is None else getattr(current, str(name))
        values[name] = _apply(hints[name], before, below, join(path, name))
    try:
        return cls(**values) if current is None else dataclasses.replace(current, **values)
    except Exception as error:
        # Any of the overrides may be the cause.
        sources = ", ".join(repr(below.source) for below in change.below.values())
        raise ConfigError(
            f"override {sources}: {path or cls.__name__}: {cls.__name__} refused its values: {error}"
        ) from error


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _apply_to_elements(hint: Any, current: Any, change: _Change, path: str) -> Any:
    hints = element_hints(_hint_for(hint, current), len(current)) or [Any] * len(current)
    items = list(current)
    for index, below in change.below.items():
        if not isinstance(index, int) or index >= len(items):
            raise below.error(f"{path} has {len(items)} elements, numbered from 0; there is no element {index!r}")
        items[index] = _apply(hints[index], items[index], below, f"{path}[{index}]")
    return tuple(items) if isinstance(current, tuple) else items


def _apply_to_mapping(hint: Any, current: dict[Any, Any], change: _Change, path: str) -> dict[Any, Any]:
    key_hint, value_hint = key_and_value_hints(_hint_for(hint, current))
    result = dict(current)
    for step, below in change.below.items():
        try:
            key = Parser(STRICT).parse_key(key_hint, step, path)
        except ConfigError as error:
            raise below.error(str(error)) from error
        result[key] = _apply(value_hint, result.get(key), below, join(path, step))
    return result


def _hint_for(hint: Any, container: Any) -> Any:
    return next((member for member in members_of(hint) if base_class(member) in type(container).__mro__), Any)


def _read(hint: Any, change: _Change, text: str, path: str) -> Any:
    errors = []
    for candidate in _candidates(text):
        try:
            return parse(hint, candidate, STRICT, path)
        except ConfigError as error:
            errors.append(error)
    raise change.error(str(errors[0])) from errors[0]


def _candidates(text: str) -> list[Any]:
    """What a text may mean, most specific first. The field decides."""
    loaded = _loaded(load_yaml, text)
    if isinstance(loaded, str):
        # Unquoted text is taken literally: YAML would cut it off at a ` #`.
        return [loaded, text] if text[:1] in ("'", '"') else [text]
    as_text = _loaded(load_yaml_as_text, text)
    return [loaded, text] if isinstance(as_text, str) else [loaded, text, as_text]


def _loaded(load: Callable[[str], Any], text: str) -> Any:
    """The YAML value of a text, or the text itself if it is empty or not YAML."""
    import yaml

    try:
        return load(text) if text else text
    except (yaml.YAMLError, ValueError):
        return text
