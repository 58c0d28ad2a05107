"""What cannot be read back equal is not written."""

import enum
import fractions
import pathlib
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.config import config_tree as tree
from trackside.config import ConfigDict
from trackside.errors import ConfigError


@dataclass
class LooseConfig(ConfigDict):
    a: Any = None
    b: dict = field(default_factory=dict)
    c: dict[int | str, int] = field(default_factory=dict)
    d: object = None


class Odd:
    def __repr__(self):
        return "<odd>"


class Word(enum.StrEnum):
    ONE = "one"


def forced(config, **values):
    """A config with values of other types than it declares, which no constructor lets through."""
    for name, value in values.items():
        object.__setattr__(config, name, value)
    return config


def refused(config) -> str:
    with pytest.raises(ConfigError) as caught:
        config.to_dict()
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (forced(tree.RunConfig(), seed="1"), ["seed", "'1'", "int"]),
        (forced(tree.RunConfig(), seed=None), ["seed", "None", "int"]),
        (forced(tree.RunConfig(), modes={"a"}), ["modes", "{'a'}", "list[str]"]),
        (tree.RunConfig(hooks=[forced(tree.HookConfig(), every_n_steps=1.5)]), ["hooks[0].every_n_steps", "1.5"]),
        (forced(tree.RunConfig(), hooks=[tree.SinkConfig()]), ["hooks[0]", "SinkConfig()", "HookConfig"]),
        (tree.RunConfig(output=tree.OutputConfig(path="x")), ["output.path", "'x'", "Path"]),
        (tree.RunConfig(lr=2**53 + 1), ["lr", "9007199254740993", "float"]),
        (forced(tree.RunConfig(), lr=10**400), ["lr", "float"]),
        (tree.RunConfig(lr=fractions.Fraction(1, 3)), ["lr", "Fraction(1, 3)", "float"]),
        (tree.RunConfig(pattern=re.compile(b"a")), ["pattern", "re.compile(b'a')"]),
        (forced(tree.RunConfig(), limit=[1]), ["limit", "[1]", "int | float | str | None"]),
        (LooseConfig(a=Odd()), ["a", "<odd>"]),
        (LooseConfig(a={"x": [Odd()]}), ["a.x[0]", "<odd>"]),
        (LooseConfig(a=Word.ONE), ["a", "Word.ONE"]),
        (LooseConfig(a=np.float32(1)), ["a", "1.0"]),
        (LooseConfig(a={1: 2}), ["a[1]", "'1'"]),
        (LooseConfig(b={1: 2}), ["b[1]", "'1'"]),
        (LooseConfig(c={1: 2}), ["c[1]", "'1'"]),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(config, words):
    """The error states the field's path and the value."""
    message = refused(config)
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        pathlib.Path("a"),
        {1, 2},
        frozenset({"a"}),
        float("inf"),
        [(), [()]],
        {"__class__": "x"},
        {"__as__": "tuple", "value": [1]},
        {"__as__": "nothing", "value": 1},
        tree.SaveHookConfig(),
        {"a": tree.TraceHookConfig()},
        1,
        True,
        1.0,
        None,
    ],
)
def test_untyped_fields_keep_the_type_of_their_value(value):
    """Whatever an Any field can write it reads back, of the very same type."""
    back = ConfigDict.from_dict(LooseConfig, LooseConfig(a=value, d=value).to_dict())
    assert (back.a, back.d) == (value, value)
    assert type(back.a) is type(value)


def test_only_what_json_lacks_is_tagged():
    """Plain JSON in an Any field is written unchanged; a tuple gets a tag."""
    data = LooseConfig(a={"list": [1, "x", None], "tuple": (1,)}).to_dict()
    assert data["a"] == {"list": [1, "x", None], "tuple": {"__as__": "tuple", "value": [1]}}


def test_numpy_scalars_are_written_as_numbers():
    """np.int64, np.float32 and np.bool_ equal the numbers that are read back."""
    config = tree.RunConfig(seed=np.int64(3), lr=np.float32(0.1), debug=np.bool_(True))
    data = config.to_dict()
    assert [type(data[name]) for name in ("seed", "lr", "debug")] == [int, float, bool]
    assert ConfigDict.from_dict(tree.RunConfig, data) == config


def test_a_subclass_of_a_plain_dataclass_is_refused():
    """Only configs are read back as a subclass, so no other dataclass may be written as its base."""

    @dataclass
    class WideWindow(tree.Window):
        width: int = 1

    assert "window" in refused(tree.RunConfig(window=WideWindow()))


def test_a_config_that_is_no_dataclass_is_refused():
    """The error says that the decorator is missing."""

    class BareConfig(ConfigDict):
        pass

    assert "decorate BareConfig with @dataclass" in refused(BareConfig())
