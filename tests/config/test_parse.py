"""Data that does not fit is refused by the name of its field; what is ignored is logged."""

import copy
import json
import logging
import pathlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.config import config_tree as tree
from trackside.config import ConfigDict
from trackside.errors import ConfigError


def parse(data, config_class=tree.RunConfig, **options):
    return ConfigDict.from_dict(config_class, data, **options)


BAD = {
    "bool from text": (lambda d: d.update(debug="False"), ["debug", "'False'", "bool"]),
    "int from text": (lambda d: d.update(seed="12"), ["seed", "'12'", "int"]),
    "int from float": (lambda d: d.update(seed=1.5), ["seed", "1.5", "int"]),
    "int from bool": (lambda d: d.update(seed=True), ["seed", "True", "int"]),
    "list from text": (lambda d: d.update(modes="mean"), ["modes", "'mean'", "list[str]"]),
    "nested int": (lambda d: d["output"].update(every_n_steps="x"), ["output.every_n_steps", "'x'", "int"]),
    "field in a list": (lambda d: d["hooks"][1].update(mode="best"), ["hooks[1].mode", "'best'", "'min', 'max'"]),
    "unknown class": (lambda d: d["hooks"][0].update(__class__="os.system"), ["hooks[0].__class__", "os.system"]),
    "missing class": (lambda d: d["hooks"][0].pop("__class__"), ["hooks[0].folder", "every_n_steps"]),
    "class of another family": (
        lambda d: d["hooks"][0].update(__class__="FileSinkConfig"),
        ["hooks[0].__class__", "FileSinkConfig", "SaveHookConfig"],
    ),
    "enum": (lambda d: d.update(anneal="cosin"), ["anneal", "'cosin'", "'constant', 'cosine'"]),
    "unknown key": (lambda d: d["output"]["sinks"][0].update(sufix=1), ["output.sinks[0].sufix", "it has suffix"]),
    "dtype": (lambda d: d["net"].update(dtype="bf17"), ["net.dtype", "'bf17'", "dtype"]),
    "unregistered function": (lambda d: d["net"].update(net="os.system"), ["net.net", "os.system", "register"]),
    "float from bool": (lambda d: d.update(lr=True), ["lr", "True", "float"]),
    "float from text": (lambda d: d.update(lr="1e-3"), ["lr", "'1e-3'", "float"]),
    "str from int": (lambda d: d.update(name=1), ["name", "1", "str"]),
    "path from int": (lambda d: d["output"].update(path=1), ["output.path", "1", "path"]),
    "config from text": (lambda d: d.update(output="x"), ["output", "'x'", "OutputConfig"]),
    "dict from list": (lambda d: d.update(evals=[1]), ["evals", "[1]", "mapping"]),
    "value in a dict": (lambda d: d["evals"].update({"b c": 3}), ["evals['b c']", "3", "HookConfig"]),
    "key of a dict": (lambda d: d["by_step"].update({"x": "y"}), ["by_step.x", "'x'", "int"]),
    "length of a tuple": (
        lambda d: d["net"].update(shape=[1, 2.0]),
        ["net.shape", "[1, 2.0]", "tuple[int, float, str]"],
    ),
    "element of a tuple": (lambda d: d["net"].update(shape=[1, "x", ""]), ["net.shape[1]", "'x'", "float"]),
    "element of a set": (lambda d: d.update(tags=[1]), ["tags[0]", "1", "str"]),
    "regular expression": (lambda d: d.update(pattern="("), ["pattern", "'('", "regular expression"]),
    "class": (lambda d: d["net"].update(base="builtins.int"), ["net.base", "builtins.int", "type[Net]"]),
    "none": (lambda d: d.update(seed=None), ["seed", "None", "int"]),
    "several types": (lambda d: d.update(limit=[1]), ["limit", "[1]", "int | float | str | None"]),
    "plain dataclass": (lambda d: d["window"].update(start="x"), ["window.start", "'x'", "int"]),
    "class name": (lambda d: d["hooks"][0].update(__class__=3), ["hooks[0].__class__", "3"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_is_refused_by_name(name):
    """The error states the field's path, the value and what was expected."""
    mutate, words = BAD[name]
    data = copy.deepcopy(json.loads(json.dumps(tree.EXAMPLE.to_dict())))
    mutate(data)
    with pytest.raises(ConfigError) as caught:
        parse(data)
    assert [word for word in words if word not in str(caught.value)] == []


def test_an_int_is_fine_in_a_float_field():
    """An int becomes the float of the same value."""
    lr = parse({"lr": 1}).lr
    assert lr == 1.0
    assert type(lr) is float


def test_an_ignored_key_is_logged_by_its_path(caplog):
    """With ignore_extensive_attributes=True, keys that are not fields are skipped with one warning each."""
    data = {"sed": 1, "output": {"sinks": [{"__class__": "FileSinkConfig", "sufix": "x"}]}}
    with caplog.at_level(logging.WARNING, logger="trackside.config.parse"):
        assert parse(data, ignore_extensive_attributes=True).output.sinks == [tree.FileSinkConfig()]
    assert [record.message for record in caplog.records] == [
        "sed: RunConfig has no field 'sed', ignoring it",
        "output.sinks[0].sufix: FileSinkConfig has no field 'sufix', ignoring it",
    ]


def test_an_unknown_key_is_refused():
    """Without any option, the error names the key, the closest field and all fields."""
    with pytest.raises(ConfigError, match=r"^sed: RunConfig has no field 'sed'; it has seed, debug, .*mean 'seed'"):
        parse({"sed": 1})


def test_a_union_logs_only_for_the_type_that_it_takes(caplog):
    """Of two configs that data without a class name fits, the one that ignores nothing is taken, silently."""
    assert parse({"choice": {"main_process_only": True}}).choice == tree.HookConfig(main_process_only=True)
    assert caplog.records == []


def test_none_becomes_zero_on_demand():
    """With none_to_zero_for_ints=True, None is 0 in an int field and stays None where None is allowed."""

    @dataclass
    class CountsConfig(ConfigDict):
        a: int = 1
        b: int | None = 1
        c: list[int] = field(default_factory=list)
        d: float = 1.0

    config = parse({"a": None, "b": None, "c": [None, 2]}, CountsConfig, none_to_zero_for_ints=True)
    assert config == CountsConfig(0, None, [0, 2])
    with pytest.raises(ConfigError, match=r"^d: expected float, got None"):
        parse({"d": None}, CountsConfig, none_to_zero_for_ints=True)


def test_a_missing_class_name_means_the_declared_class():
    """Data without "__class__" is read as what the field declares."""
    assert parse({"hooks": [{"every_n_steps": 2}]}).hooks == [tree.HookConfig(2)]


def test_an_unknown_class_name_falls_back_to_the_declared_class(caplog):
    """With strict_classname_parsing=False, the declared class is built and a warning says so."""
    config = parse({"hooks": [{"__class__": "GoneConfig", "every_n_steps": 2}]}, strict_classname_parsing=False)
    assert config.hooks == [tree.HookConfig(2)]
    assert "hooks[0].__class__: no config class is named 'GoneConfig'" in caplog.text


def test_an_unknown_class_name_is_refused():
    """Without any option, the error lists the names that would fit."""
    with pytest.raises(ConfigError, match=r"hooks\[0\].__class__.*'SavHookConfig'.*HookConfig, SaveHookConfig, Trace"):
        parse({"hooks": [{"__class__": "SavHookConfig"}]})


@pytest.mark.parametrize("strict", [True, False])
def test_a_class_of_another_family_is_always_refused(strict):
    """A known class that does not derive from the declared one is an error, strict or not."""
    with pytest.raises(ConfigError, match=r"hooks\[0\].__class__: 'OutputConfig' is not a HookConfig"):
        parse({"hooks": [{"__class__": "OutputConfig"}]}, strict_classname_parsing=strict)


def test_an_unknown_class_needs_a_declared_one_with_fields():
    """If the field declares only ConfigDict, there is nothing to fall back to."""
    with pytest.raises(ConfigError, match=r"net.inner.__class__: no config class is named 'GoneConfig'"):
        parse({"net": {"inner": {"__class__": "GoneConfig"}}})
    with pytest.raises(ConfigError, match=r"net.inner.__class__: ConfigDict is not a dataclass"):
        parse({"net": {"inner": {"a": 1}}})


def test_missing_fields_are_named():
    """One error lists all fields that the data lacks."""

    @dataclass
    class NeedyConfig(ConfigDict):
        a: int
        b: int
        c: int = 1

    with pytest.raises(ConfigError, match="NeedyConfig is missing the fields a, b"):
        parse({"c": 2}, NeedyConfig)


def test_an_error_of_the_class_itself_carries_the_path():
    """What `__post_init__` raises becomes a ConfigError and stays its cause."""
    with pytest.raises(ConfigError, match=r"window: .*end=1 is before start=2") as caught:
        parse({"window": {"start": 2, "end": 1}})
    assert type(caught.value.__cause__) is ValueError


@pytest.mark.parametrize(
    ("config_class", "data", "value"),
    [
        (int, 3, 3),
        (pathlib.Path, "a", pathlib.Path("a")),
        (list[float], [1], [1.0]),
        (dict[str, tree.HookConfig], {"a": {}}, {"a": tree.HookConfig()}),
        (tree.Window, {"end": 3}, tree.Window(0, 3)),
        (tree.OutputConfig | None, None, None),
    ],
)
def test_any_type_can_be_read(config_class, data, value):
    """from_dict takes any type that a field may have."""
    assert parse(data, config_class) == value


class Point:
    def __init__(self, x, y=0):
        self.xy = (int(x), int(y))


def test_other_classes_are_called():
    """A class that is not a dataclass is called with the data, as keyword arguments if it is a dict."""

    @dataclass
    class PointsConfig(ConfigDict):
        first: Point
        second: Point
        third: Point | None = None

    given = Point(5)
    config = parse({"first": {"x": 1, "y": 2}, "second": 3, "third": given}, PointsConfig)
    assert (config.first.xy, config.second.xy) == ((1, 2), (3, 0))
    assert config.third is given
    with pytest.raises(ConfigError, match="first: Point refused its values: invalid literal"):
        parse({"first": "x", "second": 1}, PointsConfig)
    with pytest.raises(ConfigError, match=r"first: Point refused its values: .*unexpected keyword"):
        parse({"first": {"z": 1}, "second": 1}, PointsConfig)


def test_lists_stay_lists_and_tuples_tuples():
    """The annotation decides, whichever of the two the data has."""
    config = parse({"modes": ("a",), "net": {"names": ["b"]}})
    assert config.modes == ["a"]
    assert config.net.names == ("b",)


def test_data_is_not_changed():
    """Reading leaves the data as it was."""
    data = tree.EXAMPLE.to_dict()
    before = copy.deepcopy(data)
    parse(data)
    assert data == before


def test_an_annotation_without_meaning_is_refused():
    """An annotation that no value can be read for is named, instead of guessing."""

    @dataclass
    class OddConfig(ConfigDict):
        a: "3" = 1  # pyright: ignore

    with pytest.raises(ConfigError, match="3"):
        parse({"a": 1}, OddConfig)


def test_untyped_fields_take_data_as_it_is():
    """A value that is not JSON, given from Python, passes through an `Any` field."""

    @dataclass
    class LooseConfig(ConfigDict):
        a: Any = None

    marker = object()
    assert parse({"a": marker}, LooseConfig).a is marker


def test_an_untyped_field_refuses_an_unknown_class():
    """Data that names a class is that config or an error, and never silently a dict."""
    with pytest.raises(ConfigError, match=r"extra\[0\].__class__: no config class is named 'GoneConfig'"):
        parse({"extra": [{"__class__": "GoneConfig"}]})
