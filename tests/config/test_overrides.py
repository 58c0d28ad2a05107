"""Overrides: text that changes configs."""

import copy
import math
import pathlib
from dataclasses import dataclass
from typing import Any

import pytest

from tests.config import config_tree as tree
from trackside.config import ConfigDict, apply_overrides
from trackside.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("seed=1", "seed", 1),
        (" seed = 1 ", "seed", 1),
        ("debug=true", "debug", True),
        ("name=adam", "name", "adam"),
        ("name=123", "name", "123"),
        ("name=1e-3", "name", "1e-3"),
        ("name=null", "name", "null"),
        ("name=", "name", ""),
        ("name='a b'", "name", "a b"),
        ("name=a #1", "name", "a #1"),
        ("name=a=b", "name", "a=b"),
        ("name=a: [b", "name", "a: [b"),
        ("name=*.txt", "name", "*.txt"),
        ("name=2024-01-01", "name", "2024-01-01"),
        ("lr=1e-3", "lr", 1e-3),
        ("lr=1", "lr", 1.0),
        ("lr=inf", "lr", math.inf),
        ("output=null", "output", None),
        ("modes=[a, b]", "modes", ["a", "b"]),
        ('modes=["a"]', "modes", ["a"]),
        ("modes=[1, yes]", "modes", ["1", "yes"]),
        ("modes[0]=max", "modes", ["max"]),
        ("sizes=[1, 2]", "sizes", [1, 2]),
        ("anneal=cosine", "anneal", tree.Anneal.COSINE),
        ("limit=3", "limit", 3),
        ("limit=x", "limit", "x"),
        ("evals={a: {every_n_steps: 2}}", "evals", {"a": tree.HookConfig(2)}),
        ("by_step.3=x", "by_step", {3: "x"}),
        ("by_step[3]=x", "by_step", {3: "x"}),
        ("anything['a.b']=1", "anything", {"a.b": 1}),
        ("extra=[1, {a: null}]", "extra", [1, {"a": None}]),
        ("extra=adam", "extra", "adam"),
        ("hooks=[{__class__: SaveHookConfig, mode: max}]", "hooks", [tree.SaveHookConfig(mode="max")]),
    ],
)
def test_values_are_read_by_the_type_of_their_field(override, name, value):
    """The same text is read as a number, a string or None, depending on the field."""
    changed = getattr(apply_overrides(tree.RunConfig(), [override]), name)
    assert changed == value
    assert type(changed) is type(value)


def test_nested_fields_are_reached():
    """Dots lead through configs and dicts, brackets through lists and tuples; subclasses keep their fields."""
    overrides = [
        "output.path=runs/x",
        "output.sinks[0].suffix=txt",
        "hooks[1].mode=max",
        "hook_pair[1].monitor=loss",
        "evals.a.mode=max",
        "evals['b c'].every_n_steps=9",
        "net.axes.tp=4",
        "net.shape[1]=7",
        "net.inner.every_n_steps=8",
        "window.end=5",
        "extra[2].z=false",
        "extra[3].every_n_steps=6",
    ]
    changed = apply_overrides(tree.EXAMPLE, overrides)
    assert changed.output.path == pathlib.Path("runs/x")
    assert changed.output.sinks[0] == tree.FileSinkConfig("txt")
    assert changed.hooks[1] == tree.SaveHookConfig(monitor="val_loss", mode="max")
    assert changed.hook_pair == (tree.HookConfig(), tree.SaveHookConfig(monitor="loss"))
    assert changed.evals == {"a": tree.SaveHookConfig(mode="max"), "b c": tree.HookConfig(9)}
    assert changed.net.axes == {"dp": 2, "tp": 4}
    assert changed.net.shape == (4, 7.0, "d")
    assert changed.net.inner == tree.HookConfig(8)
    assert changed.window == tree.Window(1, 5)
    assert changed.extra[2]["z"] is False
    assert changed.extra[3] == tree.HookConfig(6)


def test_the_given_config_is_unchanged():
    """Overrides make a new config."""
    before = copy.deepcopy(tree.EXAMPLE)
    changed = apply_overrides(tree.EXAMPLE, ["hooks[1].mode=max", "net.axes.dp=9", "anything.k.suffix=y"])
    assert before == tree.EXAMPLE
    assert changed != before
    assert apply_overrides(tree.EXAMPLE, []) == before


def test_a_mapping_of_configs_is_changed_by_name():
    """The first step names the config; values that are not configs can be replaced, too."""
    configs = {"run": tree.RunConfig(), "net": tree.NetConfig(), "steps": 3}
    changed = apply_overrides(configs, ["run.seed=1", "net.names=[a]", "steps=5"])
    assert changed == {"run": tree.RunConfig(seed=1), "net": tree.NetConfig(names=("a",)), "steps": 5}
    assert configs["run"] == tree.RunConfig()


def test_a_whole_config_in_a_mapping_is_replaced_by_its_own_kind():
    """The type of the named value decides how its text is read."""
    assert apply_overrides({"run": tree.RunConfig(seed=1)}, ["run={debug: true}"]) == {
        "run": tree.RunConfig(debug=True)
    }


def test_a_config_that_is_none_is_made_from_its_defaults():
    """A field below None builds what the field declares, through several levels."""
    changed = apply_overrides(tree.RunConfig(output=None), ["output.every_n_steps=5", "net.axes.tp=2"])
    assert changed.output == tree.OutputConfig(every_n_steps=5)
    assert changed.net == tree.NetConfig(axes={"dp": -1, "tp": 2})


def test_a_none_config_may_get_its_required_fields():
    """A class without defaults is built if the overrides give what it needs, and named if they do not."""

    @dataclass
    class ExactConfig(ConfigDict):
        a: int
        b: int

    @dataclass
    class HolderConfig(ConfigDict):
        exact: ExactConfig | None = None
        table: dict[str, int] | None = None

    assert apply_overrides(HolderConfig(), ["exact.a=1", "exact.b=2"]).exact == ExactConfig(1, 2)
    assert apply_overrides(HolderConfig(), ["table.x=1"]).table == {"x": 1}
    with pytest.raises(ConfigError, match=r"override 'exact.a=1': exact: ExactConfig .*'b'"):
        apply_overrides(HolderConfig(), ["exact.a=1"])


def test_checks_see_all_changes_together():
    """Two fields that are valid only together can be changed in either order."""
    for overrides in (["window.start=30", "window.end=40"], ["window.end=40", "window.start=30"]):
        assert apply_overrides(tree.RunConfig(), overrides).window == tree.Window(30, 40)


def test_the_later_override_counts():
    """Of two overrides for the same field the last wins, even if one replaces the whole config."""
    assert apply_overrides(tree.RunConfig(), ["seed=1", "seed=2"]).seed == 2
    assert apply_overrides(tree.RunConfig(), ["output.every_n_steps=2", "output=null"]).output is None
    changed = apply_overrides(tree.RunConfig(), ["output={path: x}", "output.every_n_steps=2"])
    assert changed.output == tree.OutputConfig(2, pathlib.Path("x"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sed=1", ["RunConfig has no field 'sed'", "Did you mean 'seed'?", "debug"]),
        ("output.pth=x", ["OutputConfig has no field 'pth'", "Did you mean 'path'?", "sinks"]),
        ("seed=x", ["seed: expected int, got 'x'"]),
        ("debug=1", ["debug: expected bool, got 1"]),
        ("modes=mean", ["modes: expected a list", "'mean'"]),
        ("hooks[1].mode=best", ["hooks[1].mode", "'best'", "'min', 'max'"]),
        ("hooks[7].mode=max", ["hooks has 2 elements", "7"]),
        ("hooks.first=1", ["hooks has 2 elements", "'first'"]),
        ("hooks[0]={mod: 1}", ["hooks[0].mod", "HookConfig has no field 'mod'"]),
        ("seed.x=1", ["seed is 3, which has no fields"]),
        ("by_step.x=1", ["by_step.x", "int"]),
        ("window.end=-5", ["window", "end=-5 is before start=1"]),
        ("num_made=1", ["RunConfig has no field 'num_made'"]),
        ("seed", ["expected path=value"]),
        ("=1", ["expected path=value"]),
        ("a..b=1", ["expected path=value"]),
        ("hooks[x=1", ["expected path=value"]),
    ],
)
def test_an_override_that_cannot_be_applied_is_named(override, words):
    """The error names the override, what is wrong and the fields that exist."""
    with pytest.raises(ConfigError) as caught:
        apply_overrides(tree.EXAMPLE, [override])
    message = str(caught.value)
    assert message.startswith(f"override {override!r}: ")
    assert [word for word in words if word not in message] == []


def test_what_is_no_config_is_refused():
    """Only configs and mappings of them can be changed, and only by text."""
    with pytest.raises(ConfigError, match="expected a config or a mapping of configs, got 3"):
        apply_overrides(3, ["a=1"])
    with pytest.raises(ConfigError, match="expected path=value"):
        apply_overrides(tree.RunConfig(), [3])


def test_an_unknown_name_in_a_mapping_is_named():
    """The error lists the configs that exist."""
    with pytest.raises(ConfigError, match=r"override 'rn.seed=1': .*there are run, net\. Did you mean 'run'\?"):
        apply_overrides({"run": tree.RunConfig(), "net": tree.NetConfig()}, ["rn.seed=1"])


def test_a_none_without_a_declared_class_has_to_be_set_whole():
    """If only ConfigDict or nothing is declared, the error says how to name the class."""

    @dataclass
    class OpenConfig(ConfigDict):
        inner: ConfigDict | None = None
        extra: Any = None

    for name in ("inner", "extra"):
        with pytest.raises(ConfigError, match=f"{name} is None; set it as a whole first"):
            apply_overrides(OpenConfig(), [f"{name}.a=1"])
    changed = apply_overrides(OpenConfig(), ["inner={__class__: HookConfig}", "inner.every_n_steps=3"])
    assert changed.inner == tree.HookConfig(3)


def test_one_override_needs_no_list():
    """A single string is one override, and no list of letters."""
    assert apply_overrides(tree.RunConfig(), "seed=3").seed == 3
