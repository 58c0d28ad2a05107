"""From plain data to typed values: strict about types, and nothing is ignored silently."""

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trackside.config.class_names import read_class_name
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
from trackside.config.registry import Registered
from trackside.config.unions import (
    ANY_MEMBERS,
    CLASS_KEY,
    by_likeness,
    hint_of_data,
    is_config,
    names_class,
    tag_of,
    untagged,
)
from trackside.config.wording import did_you_mean, join, listed
from trackside.errors import ConfigError

LOGGER = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ParseOptions:
    """How to treat data that does not quite fit; see `ConfigDict.from_dict`."""

    strict_classname_parsing: bool = True
    ignore_extensive_attributes: bool = False
    none_to_zero_for_ints: bool = False


STRICT = ParseOptions()


def parse(hint: Any, data: Any, options: ParseOptions, path: str = "") -> Any:
    """Read data according to an annotation, and log what was ignored.

    Args:
        hint: Any annotation that a field may have; typically a config class.
        data: What JSON or YAML contain, or values that already have the right type.
        options: How to treat data that does not quite fit.
        path: Where the data is, for messages.

    Returns:
        The value.

    Raises:
        ConfigError: If the data does not fit, with the path of the field.
    """
    parser = Parser(options)
    value = parser.parse(hint, data, path)
    parser.log_notes()
    return value


class Parser:
    """One reading of data.

    Args:
        options: How to treat data that does not quite fit.
    """

    def __init__(self, options: ParseOptions):
        self.options = options
        # Logged only at the end: a union tries members whose warnings do not matter if another member fits.
        self.notes: list[str] = []
        self._compound: dict[Kind, Callable[[Any, Any, str], Any]] = {
            Kind.ANY: self._any,
            Kind.UNION: self._union,
            Kind.LIST: self._elements,
            Kind.TUPLE: self._elements,
            Kind.SET: self._elements,
            Kind.MAPPING: self._mapping,
            Kind.RECORD: self._record,
            Kind.OBJECT: self._object,
        }

    def log_notes(self) -> None:
        """Log a warning for everything that was ignored."""
        for note in self.notes:
            LOGGER.warning(note)

    def parse(self, hint: Any, data: Any, path: str) -> Any:
        """The value of one field."""
        hint = canonical(hint)
        kind = kind_of(hint)
        if kind in self._compound:
            return self._compound[kind](hint, data, path)
        if kind is Kind.UNSUPPORTED:
            raise ConfigError(f"{path or 'from_dict'}: configs do not support the annotation {hint!r}")
        if kind is Kind.INT and data is None and self.options.none_to_zero_for_ints:
            return 0
        try:
            return READERS[kind](hint, data)
        except Mismatch as mismatch:
            raise wrong(path, hint, data, mismatch.expected) from mismatch.__cause__

    def pick(self, members: Sequence[Any], data: Any, path: str) -> tuple[Any, Any]:
        """The member of a union that data is read as, and its value. The member that ignores least wins."""
        if (named := tag_of(data, members)) is not None:
            return named, self.parse(named, untagged(data), path)
        best, fewest, errors = None, None, []
        for member in by_likeness(_readable(members, data), data):
            value, notes, error = self._attempt(member, data, path)
            if error is not None:
                errors.append(error)
            elif fewest is None or len(notes) < len(fewest):
                best, fewest = (member, value), notes
            if fewest == []:
                break
        if best is None or fewest is None:
            raise fits_none(members, data, path, errors)
        self.notes += fewest
        return best

    def _attempt(self, member: Any, data: Any, path: str) -> tuple[Any, list[str], ConfigError | None]:
        before, self.notes = self.notes, []
        try:
            return self.parse(member, data, path), self.notes, None
        except ConfigError as error:
            return None, [], error
        finally:
            self.notes = before

    def _union(self, hint: Any, data: Any, path: str) -> Any:
        return self.pick(members_of(hint), data, path)[1]

    def _any(self, hint: Any, data: Any, path: str) -> Any:
        if (named := tag_of(data, ANY_MEMBERS)) is not None:
            return self.parse(named, untagged(data), path)
        hint = hint_of_data(data)
        return data if hint is None else self.parse(hint, data, path)

    def _elements(self, hint: Any, data: Any, path: str) -> Any:
        base = base_class(hint)
        allowed = (list, tuple, set, frozenset) if base in (set, frozenset) else (list, tuple)
        if not isinstance(data, allowed):
            raise wrong(path, hint, data, f"a list ({describe(hint)})")
        hints = element_hints(hint, len(data))
        if hints is None:
            raise wrong(path, hint, data, f"{describe(hint)}, which has a different length")
        pairs = enumerate(zip(hints, data, strict=True))
        items = [self.parse(item_hint, item, f"{path}[{index}]") for index, (item_hint, item) in pairs]
        return construct(base, (items,), {}, path)

    def _mapping(self, hint: Any, data: Any, path: str) -> dict[Any, Any]:
        if not isinstance(data, Mapping):
            raise wrong(path, hint, data, f"a mapping ({describe(hint)})")
        key_hint, value_hint = key_and_value_hints(hint)
        return {
            self.parse_key(key_hint, key, path): self.parse(value_hint, value, join(path, key))
            for key, value in data.items()
        }

    def parse_key(self, hint: Any, key: Any, path: str) -> Any:
        """The key of a mapping. JSON keys are text, so a number is written as its JSON text."""
        try:
            return self.parse(hint, key, join(path, key))
        except ConfigError as error:
            try:
                return self.parse(hint, json.loads(key), join(path, key))
            except (ConfigError, ValueError, TypeError):
                raise error from None

    def _record(self, hint: Any, data: Any, path: str) -> Any:
        declared = base_class(hint)
        if isinstance(data, declared):
            return data
        if not isinstance(data, Mapping):
            raise wrong(path, hint, data, f"a mapping for {describe(hint)}")
        cls = self._class_of(declared, data, path) if issubclass(declared, Registered) else declared
        hints, known = field_hints(cls), init_fields(cls)
        self.check_keys(cls, data, path)
        values = {name: self.parse(hints[name], data[name], join(path, name)) for name in known if name in data}
        _require_all(cls, values, path)
        return construct(cls, (), values, path)

    def _class_of(self, declared: type, data: Mapping[Any, Any], path: str) -> type:
        is_strict = self.options.strict_classname_parsing
        cls, warning = read_class_name(declared, data, path, is_strict=is_strict)
        if warning is not None:
            self.notes.append(warning)
        return cls

    def check_keys(self, cls: Any, data: Mapping[Any, Any], path: str) -> None:
        """Refuse keys that are not fields, or note that they are ignored."""
        known = init_fields(cls)
        for key in data:
            if key in known or (key == CLASS_KEY and issubclass(cls, Registered)):
                continue
            note = f"{join(path, key)}: {cls.__name__} has no field {key!r}"
            if not self.options.ignore_extensive_attributes:
                raise ConfigError(f"{note}; it has {listed(known)}.{did_you_mean(key, known)}")
            self.notes.append(f"{note}, ignoring it")

    def _object(self, hint: Any, data: Any, path: str) -> Any:
        base = base_class(hint)
        try:
            if isinstance(data, base):
                return data
        except TypeError as error:  # a protocol without runtime checks
            raise ConfigError(f"{path or 'from_dict'}: configs do not support the annotation {hint!r}") from error
        if isinstance(data, Mapping) and all(isinstance(key, str) for key in data):
            return construct(base, (), dict(data), path)
        return construct(base, (data,), {}, path)


def _readable(members: Sequence[Any], data: Any) -> Sequence[Any]:
    # Data that names a class is that config or an error, never a plain dict.
    configs = [member for member in members if is_config(member)] if names_class(data) else []
    return configs or members


def construct(cls: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], path: str) -> Any:
    """Call a constructor; whatever it raises becomes an error with the path of the field."""
    try:
        return cls(*args, **kwargs)
    except Exception as error:
        raise ConfigError(f"{path or cls.__name__}: {cls.__name__} refused its values: {error}") from error


def _require_all(cls: Any, values: Mapping[str, Any], path: str) -> None:
    missing = [
        name
        for name, field in init_fields(cls).items()
        if name not in values and field.default is field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{path or cls.__name__}: {cls.__name__} is missing the fields {listed(missing)}")
