"""What is written is read back equal."""

import json
import math
import pathlib
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.config import config_tree as tree
from trackside.config import ConfigDict


def through_json(config):
    text = json.dumps(config.to_dict(), allow_nan=False)
    return ConfigDict.from_dict(type(config), json.loads(text))


def types_in(value):
    """The types in a value without a declared one, since `1 == True == 1.0` says too little about it."""
    if isinstance(value, dict):
        return dict, {key: types_in(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [types_in(item) for item in value]
    if isinstance(value, set | frozenset):
        return type(value), {(item, type(item)) for item in value}
    return type(value)


INTS = st.integers()
FLOATS = st.floats(allow_nan=False)
TEXT = st.text(max_size=8) | st.sampled_from(
    ["nan", "inf", "null", "1", "__class__", "__as__", "value", "tuple", "a.b"]
)
PATHS = st.builds(pathlib.Path, st.from_regex(r"[a-z/.]{0,8}", fullmatch=True))
HOOKS = st.one_of(
    st.builds(tree.HookConfig, INTS, st.booleans()),
    st.builds(tree.SaveHookConfig, INTS, st.booleans(), st.none() | TEXT, st.sampled_from(["min", "max"])),
    st.builds(tree.TraceHookConfig, every_n_steps=INTS, folder=TEXT, minutes=FLOATS),
)
SINKS = st.builds(tree.SinkConfig) | st.builds(tree.FileSinkConfig, TEXT)
OUTPUTS = st.builds(tree.OutputConfig, INTS, st.none() | PATHS, st.lists(SINKS, max_size=2))
HASHABLE = st.none() | st.booleans() | INTS | FLOATS | TEXT | PATHS
UNTYPED = st.recursive(
    HASHABLE | HOOKS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(TEXT, inner, max_size=2),
        st.lists(inner, max_size=2).map(tuple),
        st.sets(INTS, max_size=2),
        st.frozensets(TEXT | INTS, max_size=2),
    ),
    max_leaves=4,
)
NETS = st.builds(
    tree.NetConfig,
    net=st.sampled_from([None, tree.Net, tree.DeepNet, tree.build_net]),
    base=st.sampled_from([tree.Net, tree.DeepNet]),
    dtype=st.sampled_from([None, np.dtype("int8"), np.dtype(">f4"), np.dtype("bool"), np.float32]),
    axes=st.dictionaries(TEXT, INTS, max_size=2),
    names=st.lists(TEXT, max_size=2).map(tuple),
    shape=st.tuples(INTS, FLOATS, TEXT),
    inner=st.none() | HOOKS | SINKS,
)
RUNS = st.builds(
    tree.RunConfig,
    seed=INTS,
    debug=st.booleans(),
    lr=FLOATS,
    name=TEXT,
    anneal=st.sampled_from(tree.Anneal),
    modes=st.lists(TEXT, max_size=2),
    output=st.none() | OUTPUTS,
    hooks=st.lists(HOOKS, max_size=2),
    hook_pair=st.none() | st.tuples(HOOKS, HOOKS),
    evals=st.dictionaries(TEXT, HOOKS, max_size=2),
    by_step=st.dictionaries(INTS, TEXT, max_size=2),
    net=st.none() | NETS,
    window=st.builds(tree.Window, st.integers(max_value=0), st.integers(min_value=0)),
    tags=st.sets(TEXT, max_size=3),
    frozen=st.frozensets(INTS, max_size=3),
    pattern=st.sampled_from([None, re.compile("a"), re.compile("a b", re.VERBOSE | re.DOTALL), re.compile("(?i)a")]),
    source=TEXT | PATHS,
    sizes=st.lists(INTS, max_size=2) | st.lists(INTS, max_size=2).map(tuple),
    limit=st.none() | INTS | FLOATS | TEXT,
    choice=st.none() | OUTPUTS | HOOKS,
    extra=UNTYPED,
    anything=st.dictionaries(TEXT, UNTYPED, max_size=2),
)


@settings(
    max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(RUNS)
def test_any_tree_of_configs_survives_json(config):
    """Reading what was written gives an equal config, of equal types."""
    back = through_json(config)
    assert back == config
    for name in ("limit", "sizes", "source", "extra", "anything"):
        assert types_in(getattr(back, name)) == types_in(getattr(config, name))


def test_the_filled_example_survives_json():
    """The example tree, which has a value in each kind of field, is read back equal."""
    assert through_json(tree.EXAMPLE) == tree.EXAMPLE


def test_writing_twice_gives_the_same_text():
    """What is written depends only on the config, even if it holds sets."""
    assert json.dumps(tree.EXAMPLE.to_dict()) == json.dumps(through_json(tree.EXAMPLE).to_dict())


def test_the_result_shares_nothing_with_the_config():
    """Changing the written dict does not change the config."""
    config = tree.RunConfig(modes=["mean"], extra={"a": [1]})
    data = config.to_dict()
    data["modes"].append("max")
    data["extra"]["a"].append(2)
    assert config == tree.RunConfig(modes=["mean"], extra={"a": [1]})


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_non_finite_floats_are_written_as_words(value):
    """JSON has no infinity, so a float field writes and reads its name."""
    config = tree.RunConfig(lr=value)
    assert config.to_dict()["lr"] == str(value)
    assert repr(through_json(config).lr) == repr(value)


def test_a_non_finite_float_is_told_from_its_name():
    """In a field that also takes strings, inf and "inf" stay what they are."""
    assert through_json(tree.RunConfig(limit=math.inf)).limit == math.inf
    assert through_json(tree.RunConfig(limit="inf")).limit == "inf"
