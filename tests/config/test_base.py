"""What every config has: `get`, `to_dict`, `from_dict`."""

import subprocess
import sys
from dataclasses import dataclass

import pytest

import trackside.config
from tests.config import config_tree as tree
from trackside.config import ConfigDict


def test_the_public_names_are_this_list():
    """The package exports what its users write and nothing else."""
    assert trackside.config.__all__ == ["ConfigDict", "apply_overrides", "load_config", "register", "save_config"]


def test_get_returns_a_field():
    """`get` reads a field by name."""
    assert tree.RunConfig(seed=4).get("seed") == 4


def test_get_returns_the_default_for_what_is_no_field():
    """A name that is no field gives the default, also if it is a method."""
    config = tree.RunConfig()
    assert config.get("sed") is None
    assert config.get("to_dict", 5) == 5


def test_get_works_with_slots():
    """A config without a `__dict__` can be asked like any other."""
    config = tree.TraceHookConfig(folder="x")
    assert config.get("folder") == "x"
    assert config.get("other", 1) == 1


def test_a_slots_config_can_have_no_dict():
    """The base adds no `__dict__` to configs that do without."""

    @dataclass(slots=True)
    class SlimConfig(ConfigDict):
        a: int = 1

    assert not hasattr(SlimConfig(), "__dict__")


def test_a_frozen_config_works():
    """Frozen dataclasses can be configs too."""

    @dataclass(frozen=True)
    class FrozenConfig(ConfigDict):
        a: int = 1

    assert ConfigDict.from_dict(FrozenConfig, FrozenConfig(2).to_dict()) == FrozenConfig(2)


def test_to_dict_names_every_class():
    """Each config in the tree, with or without a declared subclass, says of which class it is."""
    data = tree.EXAMPLE.to_dict()
    assert data["__class__"] == "RunConfig"
    assert data["output"]["__class__"] == "OutputConfig"
    assert [hook["__class__"] for hook in data["hooks"]] == ["TraceHookConfig", "SaveHookConfig"]


def test_an_instance_is_returned_as_it_is():
    """Data that is the config already is not copied."""
    assert ConfigDict.from_dict(tree.RunConfig, tree.EXAMPLE) is tree.EXAMPLE


def test_fields_that_the_constructor_does_not_take_are_skipped():
    """A field with init=False is neither written nor demanded."""
    config = tree.RunConfig()
    config.num_made = 7
    assert "num_made" not in config.to_dict()
    assert ConfigDict.from_dict(tree.RunConfig, config.to_dict()).num_made == 0


@pytest.mark.parametrize("module", ["jax", "numpy", "yaml"])
def test_importing_the_package_stays_light(module):
    """Nothing heavy is imported before it is needed."""
    code = f"import sys, trackside.config; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
