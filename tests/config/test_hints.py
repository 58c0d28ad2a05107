"""Annotations of every form mean what they say."""

from __future__ import annotations

import collections.abc
import typing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

import pytest

from trackside.config import ConfigDict
from trackside.config.hints import describe
from trackside.errors import ConfigError

if TYPE_CHECKING:
    from decimal import Decimal

T = TypeVar("T")
UserId = typing.NewType("UserId", int)


class Options(typing.TypedDict):
    depth: int


@dataclass
class FormsConfig(ConfigDict, Generic[T]):
    optional: typing.Optional[int] = None  # noqa: UP045 - older code writes it so
    union: typing.Union[int, str] = 1  # noqa: UP007 - older code writes it so
    old_list: typing.List[int] = field(default_factory=list)  # noqa: UP006 - older code writes it so
    old_tuple: typing.Tuple = ()  # noqa: UP006 - older code writes it so
    bare_list: list = field(default_factory=list)
    bare_tuple: tuple = ()
    empty: tuple[()] = ()
    annotated: Annotated[int, "a note"] = 1
    new_type: UserId = UserId(1)
    variable: T | None = None
    mapping: collections.abc.Mapping[str, int] = field(default_factory=dict)
    options: Options = field(default_factory=lambda: Options(depth=1))
    abstract_set: collections.abc.Set[int] = frozenset()
    forward: list[LaterConfig] = field(default_factory=list)
    quoted: list["LaterConfig"] = field(default_factory=list)  # noqa: UP037 - older code writes it so


@dataclass
class LaterConfig(ConfigDict):
    a: int = 1


def test_every_form_of_annotation_is_read():
    """Old and new spellings, wrappers, abstract containers and classes defined later all work."""
    config = FormsConfig(
        optional=2,
        union="x",
        old_list=[1],
        old_tuple=(1, "a"),
        bare_list=[(1,)],
        bare_tuple=([1],),
        annotated=3,
        new_type=UserId(4),
        variable={"a": (1,)},
        mapping={"x": 1},
        abstract_set={1},
        forward=[LaterConfig(2)],
        quoted=[LaterConfig(3)],
    )
    back = ConfigDict.from_dict(FormsConfig, config.to_dict())
    assert back == config
    assert type(back.abstract_set) is set


def test_the_wrapped_type_is_checked():
    """A wrapper around int asks for an int."""
    for name in ("annotated", "new_type", "optional"):
        with pytest.raises(ConfigError, match=f"{name}: expected int, got 'x'"):
            ConfigDict.from_dict(FormsConfig, {name: "x"})


def test_classes_inside_functions_find_each_other():
    """String annotations of local configs are resolved among the configs next to them."""

    @dataclass
    class InnerConfig(ConfigDict):
        a: int = 1

    @dataclass
    class OuterConfig(ConfigDict):
        inner: InnerConfig | None = None
        more: list[InnerConfig] = field(default_factory=list)

    config = OuterConfig(InnerConfig(2), [InnerConfig(3)])
    assert ConfigDict.from_dict(OuterConfig, config.to_dict()) == config


def test_names_in_the_class_body_are_found_too():
    """An annotation may name a class that is defined inside the config, and one from the function around it."""

    @dataclass
    class NeighbourConfig(ConfigDict):
        a: int = 1

    @dataclass
    class BodyConfig(ConfigDict):
        @dataclass
        class Part(ConfigDict):
            b: int = 2

        part: Part | None = None
        neighbour: NeighbourConfig | None = None

    config = BodyConfig(BodyConfig.Part(3), NeighbourConfig(4))
    assert ConfigDict.from_dict(BodyConfig, config.to_dict()) == config


def test_a_name_that_cannot_be_found_is_an_error():
    """The error names the class, the missing name and the cure."""

    @dataclass
    class CheckedConfig(ConfigDict):
        a: Decimal | None = None

    with pytest.raises(ConfigError, match=r"CheckedConfig: its annotations name 'Decimal'.*TYPE_CHECKING"):
        ConfigDict.from_dict(CheckedConfig, {})
    with pytest.raises(ConfigError, match="'Decimal'"):
        CheckedConfig().to_dict()


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (int, "int"),
        (list[str] | None, "list[str] | None"),
        (dict[str, Any], "dict[str, Any]"),
        (tuple[Any, ...], "tuple"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Literal["a", 1], "Literal['a', 1]"),
        (collections.abc.Callable[[int], str], "Callable[[int], str]"),
    ],
)
def test_annotations_read_as_people_write_them(hint, text):
    """Messages show annotations without module names."""
    assert describe(hint) == text
