"""The base of every config."""

from typing import TYPE_CHECKING, Any, Self, TypeVar

from trackside.config.assignment import as_constructor, as_declared, check_arguments, check_assigned, check_name
from trackside.config.encode import encode
from trackside.config.field_docs import add_field_docs
from trackside.config.parse import ParseOptions, parse
from trackside.config.registry import Registered

T = TypeVar("T")


class ConfigDict(Registered):
    """A dataclass that can be written as plain data and read back.

    Use it as the base of a dataclass: `@dataclass class MyConfig(ConfigDict)`. Data can then name the subclass by its
    class name, wherever a field declares it or one of its bases. A name that is not a field is an error, both as an
    argument and as an attribute to assign to; so is a value of another type than the field declares.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        add_field_docs(cls)
        for name in ("__init__", "__post_init__"):
            if name in vars(cls):
                setattr(cls, name, as_constructor(vars(cls)[name]))

    if not TYPE_CHECKING:  # type checkers find misspelled names by themselves, unless they see this

        def __new__(cls, /, *args: Any, **kwargs: Any) -> Self:
            """Refuse arguments that are not fields, with a suggestion."""
            if kwargs:
                check_arguments(cls, kwargs)
            return super().__new__(cls)

        @as_constructor
        def __post_init__(self, *args: Any) -> None:
            """Check the types of the fields, for a dataclass that has nothing else to do."""

        def __setattr__(self, name: str, value: Any) -> None:
            check_name(self, name)
            value = as_declared(self, name, value)
            check_assigned(self, name, value)
            object.__setattr__(self, name, value)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a field, or `default` if there is no such field."""
        return getattr(self, key, default) if key in getattr(self, "__dataclass_fields__", ()) else default

    def to_dict(self) -> dict[str, Any]:
        """The config as plain data, ready for `json.dumps`.

        Nested configs become dicts that name their class under `"__class__"`. Paths, enums, dtypes, classes and
        registered functions become strings. `from_dict` turns the result into an equal config.

        Returns:
            A new dict; changing it does not change the config.

        Raises:
            ConfigError: If a field holds what could not be read back, with the field's path and value.
        """
        return encode(type(self), self)

    @staticmethod
    def from_dict(
        config_class: type[T],
        data: Any,
        strict_classname_parsing: bool = True,
        ignore_extensive_attributes: bool = False,
        none_to_zero_for_ints: bool = False,
    ) -> T:
        """Build a config and everything nested in it from plain data.

        Types are checked and never converted: `"12"` is not an int and `"False"` is not a bool. Data never causes an
        import.

        Args:
            config_class: What to build: a config class, any other dataclass, or any other type. A class that is not a
                dataclass is called with the data, as keyword arguments if the data is a dict.
            data: The fields of the dataclass as a dict. To build a subclass, name it under `"__class__"`. Other types
                take other data. An instance of `config_class` is returned unchanged.
            strict_classname_parsing: Refuse class names that no config class has. With False, such a name logs a
                warning and the field's declared class is built.
            ignore_extensive_attributes: Skip keys that are not fields, with a warning that names each one. With False,
                such a key is an error that suggests the closest field.
            none_to_zero_for_ints: Read None as 0 in int fields that do not allow None.

        Returns:
            The `config_class` that the data describes.

        Raises:
            ConfigError: If the data does not fit, with the path of the field, the value and what was expected.
        """
        options = ParseOptions(strict_classname_parsing, ignore_extensive_attributes, none_to_zero_for_ints)
        return parse(config_class, data, options)
