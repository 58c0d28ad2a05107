"""Enums, literals, paths and patterns."""

import enum
import os
import pathlib
import re
from dataclasses import dataclass
from typing import Literal

import pytest

from trackside.config import ConfigDict
from trackside.errors import ConfigError


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    ONE = "one"


class Shape(enum.Enum):
    FLAT = (1, 2)
    DEEP = (3, 4)


class Flags(enum.Flag):
    A = 1
    B = 2


@dataclass
class LeavesConfig(ConfigDict):
    level: Level = Level.LOW
    word: Word = Word.ONE
    shape: Shape = Shape.FLAT
    flags: Flags = Flags.A
    word_or_text: Word | str = "one"
    literal: Literal["a", 1, True, None, Word.ONE] = "a"
    like: str | os.PathLike[str] = "x"
    pure: pathlib.PurePosixPath | None = None
    pattern: re.Pattern = re.compile("a")
    text: str = ""


def read(**data):
    return ConfigDict.from_dict(LeavesConfig, data)


@pytest.mark.parametrize(
    "change",
    [
        {"level": Level.HIGH},
        {"shape": Shape.DEEP},
        {"flags": Flags.A | Flags.B},
        {"word_or_text": Word.ONE},
        {"literal": 1},
        {"literal": True},
        {"literal": None},
        {"literal": Word.ONE},
        {"like": pathlib.Path("a/b")},
        {"pure": pathlib.PurePosixPath("/a")},
        {"pattern": re.compile("^a.b$", re.DOTALL | re.MULTILINE)},
    ],
)
def test_leaves_are_read_back_with_their_type(change):
    """The value comes back equal and of the same type."""
    config = LeavesConfig(**change)
    back = ConfigDict.from_dict(LeavesConfig, config.to_dict())
    assert back == config
    for name, value in change.items():
        assert type(getattr(back, name)) is type(value)


def test_an_enum_is_written_as_its_value_or_else_its_name():
    """Values that JSON can hold are written as they are, others, such as tuples, by the member's name."""
    data = LeavesConfig(level=Level.HIGH, shape=Shape.DEEP).to_dict()
    assert (data["level"], data["shape"]) == (2, "DEEP")


def test_an_enum_can_be_given_by_name():
    """A member's name is read if it is not another member's value."""
    assert read(level="HIGH").level is Level.HIGH


@pytest.mark.parametrize("data", [True, 1.0, 3, "low", None, [1]])
def test_an_enum_takes_only_its_members(data):
    """Values that merely compare equal, such as True for 1, are refused."""
    with pytest.raises(ConfigError, match="level: expected one of 1, 2"):
        read(level=data)


def test_a_literal_tells_true_from_one():
    """Options of different types that compare equal are kept apart."""
    assert read(literal=True).literal is True
    assert read(literal=1).literal is not True
    with pytest.raises(ConfigError, match="literal: expected one of 'a', 1, True, None"):
        read(literal=1.0)


def test_a_string_enum_is_fine_in_a_text_field():
    """A member of a StrEnum equals the plain string that is read back."""
    config = LeavesConfig(text=Word.ONE)
    assert type(config.to_dict()["text"]) is str
    assert ConfigDict.from_dict(LeavesConfig, config.to_dict()) == config
