"""Configs that are built in Python are held to the types that their fields declare."""

import abc
import enum
import pathlib
import re
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import jax.numpy as jnp
import numpy as np
import pytest

from trackside.config import ConfigDict
from trackside.config.declared_types import check_types
from trackside.errors import ConfigError

if TYPE_CHECKING:
    from nowhere import Unknown


class Color(enum.Enum):
    RED = "red"


class Pair(NamedTuple):
    first: int
    second: int


class Sized(Protocol):
    size: int


T = TypeVar("T")


@dataclass
class InnerConfig(ConfigDict):
    size: int = 1


@dataclass
class OuterConfig(ConfigDict):
    count: int = 0
    rate: float = 0.1
    flag: bool = False
    text: str = "a"
    choice: Literal["auto", "never", 1] = "auto"
    either: int | Literal["auto"] = "auto"
    optional: int | None = None
    names: list[str] = field(default_factory=list)
    pair: tuple[int, int] = (1, 2)
    several: Sequence[float] = ()
    by_name: dict[str, int] = field(default_factory=dict)
    inner: InnerConfig | None = None
    inners: list[InnerConfig] = field(default_factory=list)
    color: Color = Color.RED
    path: pathlib.Path | None = None
    pattern: re.Pattern[str] | None = None
    dtype: np.dtype = np.dtype("float32")  # noqa: RUF009 - dtypes do not change
    kind: type[InnerConfig] = InnerConfig
    function: Callable[[Any], Any] = abs
    anything: Any = None
    own: Pair = Pair(1, 2)  # noqa: RUF009 - tuples do not change
    protocol: Sized | None = None
    loose: int = None  # type: ignore[assignment]


class Built:
    def __init__(self, config):
        self.config = config


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", "2", "count: expected int, got '2'; write 2"),
        ("count", "x", "count: expected int, got 'x'"),
        ("count", 2.5, "count: expected int, got 2.5"),
        ("count", 1e4, "count: expected int, got 10000.0; write 10000"),
        ("count", True, "count: expected int, got True"),
        ("count", None, "count: expected int, got None"),
        ("count", np.float32(1.5), "count: expected int"),
        ("count", np.ones(2), "count: expected int"),
        ("rate", "0.5", "rate: expected float, got '0.5'; write 0.5"),
        ("rate", "nan", "rate: expected float, got 'nan'"),
        ("flag", 1, "flag: expected bool, got 1; write True"),
        ("flag", "false", "flag: expected bool, got 'false'; write False"),
        ("text", 3, "text: expected str, got 3"),
        ("choice", "Auto", "choice: expected one of 'auto', 'never', 1, got 'Auto'. Did you mean 'auto'?"),
        ("either", "x", "either: expected int | Literal['auto'], got 'x'"),
        ("optional", "3", "optional: expected int, got '3'; write 3"),
        ("names", "a", "names: expected a list (list[str]), got 'a'; write ['a']"),
        ("names", [1], "names[0]: expected str, got 1"),
        ("names", {"a"}, "names: expected a list (list[str]), got {'a'}"),
        ("pair", (1, 2, 3), "pair: expected tuple[int, int], which has a different length, got (1, 2, 3)"),
        ("by_name", {"a": "b"}, "by_name.a: expected int, got 'b'"),
        ("by_name", [1], "by_name: expected a mapping (dict[str, int]), got [1]"),
        ("inner", "x", "inner: expected InnerConfig, got 'x'"),
        ("inner", {"size": 2}, "inner: expected InnerConfig, got {'size': 2}; write InnerConfig(...)"),
        ("inner", InnerConfig, "write InnerConfig(...)"),
        ("inners", InnerConfig(), "inners: expected a list (list[InnerConfig]), got InnerConfig(size=1); write ["),
        ("inners", [3], "inners[0]: expected InnerConfig, got 3"),
        ("color", "blue", "color: expected one of 'red', got 'blue'"),
        ("path", 3, "path: expected a path (Path), got 3"),
        ("dtype", "float33", "dtype: expected the name of a dtype"),
        ("kind", int, "kind: expected type[InnerConfig], got <class 'int'>"),
        ("function", "abs", "function: expected a function or class, got 'abs'"),
    ],
)
def test_a_wrong_type_is_refused_by_name(name, value, message):
    """Argument, value and what was probably meant: when it is built, and when it is assigned later."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        OuterConfig(**{name: value})
    config = OuterConfig()
    with pytest.raises(ConfigError, match=re.escape(message)):
        setattr(config, name, value)
    assert getattr(config, name) == getattr(OuterConfig(), name), "nothing is stored"


@dataclass
class FolderConfig(ConfigDict):
    text: str = ""
    text_or_none: str | None = None
    text_or_path: str | pathlib.Path = ""
    anything: Any = None


@pytest.mark.parametrize("name", ["text", "text_or_none"])
def test_a_path_is_stored_as_text_where_text_is_declared(name: str) -> None:
    """Given or assigned later, it equals what is read back from the data that is written."""
    config = FolderConfig(**{name: pathlib.Path("a") / "b"})
    assert getattr(config, name) == "a/b"
    assert ConfigDict.from_dict(FolderConfig, config.to_dict()) == config
    setattr(config, name, pathlib.Path("c"))
    assert getattr(config, name) == "c"


@pytest.mark.parametrize("name", ["text_or_path", "anything"])
def test_a_path_stays_one_where_it_may(name: str) -> None:
    """A field that takes paths, or anything, has what it was given."""
    assert getattr(FolderConfig(**{name: pathlib.Path("a")}), name) == pathlib.Path("a")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", np.int64(3)),
        ("count", np.array(3)),
        ("count", jnp.array(3)),
        ("rate", 1),
        ("rate", np.float32(0.5)),
        ("rate", jnp.array(0.5)),
        ("rate", jnp.bfloat16(0.5)),
        ("rate", float("nan")),
        ("flag", np.bool_(True)),
        ("text", pathlib.Path("a")),
        ("either", 3),
        ("names", ("a", "b")),
        ("several", np.ones(3)),
        ("several", [1, 2.5]),
        ("inners", [Built(InnerConfig())]),
        ("color", Color.RED),
        ("path", "a/b"),
        ("pattern", "a.*"),
        ("pattern", re.compile("a")),
        ("dtype", jnp.bfloat16),
        ("dtype", "bfloat16"),
        ("function", lambda x: x),
        ("function", jnp.tanh),
        ("anything", object()),
        ("own", Pair(2, 3)),
        ("own", (2, 3)),
        ("protocol", object()),
        ("loose", None),
    ],
)
def test_what_works_in_python_is_allowed(name, value):
    """Numbers of numpy and JAX, paths, tuples, dtypes, callables and classes of the user's own."""
    OuterConfig(**{name: value})
    setattr(OuterConfig(), name, value)


def test_a_number_in_an_array_is_stored_as_a_number():
    """So that the config can be written and read back equal."""
    config = OuterConfig(count=jnp.array(3), rate=np.array(0.5))
    assert (type(config.count), type(config.rate)) == (int, float)
    assert ConfigDict.from_dict(OuterConfig, {"count": 3, "rate": 0.5}) == config


def test_a_constructor_may_convert_its_fields():
    """Types are looked at when it is done, in a subclass as well."""

    @dataclass
    class SizesConfig(OuterConfig):
        sizes: list[int] = field(default_factory=list)
        scale: InitVar[int] = 1

        def __post_init__(self, scale):
            if isinstance(self.sizes, str):
                self.sizes = [scale * int(size) for size in self.sizes.split(",")]

    assert SizesConfig(sizes="1,2", scale=2).sizes == [2, 4]
    with pytest.raises(ConfigError, match="count: expected int, got 'x'"):
        SizesConfig(count="x")


def test_a_constructor_that_fails_on_a_type_says_which():
    """What Python says of a comparison that cannot be made is of no help; an error of its own stays as it is."""

    @dataclass
    class LimitConfig(ConfigDict):
        limit: int = 1

        def __post_init__(self):
            if self.limit < 1:
                raise RuntimeError("too low")

    with pytest.raises(ConfigError, match="limit: expected int, got '2'; write 2"):
        LimitConfig(limit="2")
    with pytest.raises(RuntimeError, match="too low"):
        LimitConfig(limit=0)


def test_annotations_that_cannot_be_resolved_are_left_alone():
    """The fields of the base class are checked all the same."""

    @dataclass
    class LazyConfig(InnerConfig):
        unknown: "Unknown | None" = None

    assert LazyConfig(unknown=3).unknown == 3
    with pytest.raises(ConfigError, match="size: expected int, got 'x'"):
        LazyConfig(size="x")


def test_every_kind_of_dataclass_is_checked():
    """Frozen, with slots, generic, abstract, or with a constructor written by hand."""

    @dataclass(frozen=True)
    class FrozenConfig(ConfigDict):
        size: int = 1

    @dataclass(slots=True)
    class SlotsConfig(ConfigDict):
        size: int = 1

    @dataclass
    class GenericConfig(ConfigDict, Generic[T]):
        size: int = 1
        value: T | None = None

    @dataclass
    class AbstractConfig(ConfigDict, abc.ABC):
        size: int = 1

    @dataclass(init=False)
    class WrittenConfig(ConfigDict):
        size: int

        def __init__(self, size=1):
            self.size = size

    for cls in (FrozenConfig, SlotsConfig, GenericConfig, AbstractConfig, WrittenConfig):
        assert cls(size=2).size == 2
        with pytest.raises(ConfigError, match="size: expected int, got 'x'"):
            cls(size="x")


def test_a_class_that_was_defined_again_is_the_same():
    """As when a cell of a notebook runs twice, and only one of two classes was defined again."""

    def define():
        @dataclass
        class CellConfig(ConfigDict):
            size: int = 1

        return CellConfig

    first, second = define(), define()

    @dataclass
    class HolderConfig(ConfigDict):
        cell: first = field(default_factory=first)  # type: ignore[valid-type]

    assert HolderConfig(cell=second()).cell.size == 1


def test_arguments_of_a_function_are_checked_by_its_annotations():
    """As those of a config, by their names."""

    def begin(path: str | pathlib.Path, count: int = 0) -> None: ...

    check_types(begin, path=pathlib.Path("a"), count=3)
    with pytest.raises(ConfigError, match="count: expected int, got '3'; write 3"):
        check_types(begin, count="3")
