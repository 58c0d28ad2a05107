"""What every config has: `get`, `to_dict`, `from_dict`."""

import inspect
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import trackside.config
from tests.config import config_tree as tree
from trackside.config import ConfigDict
from trackside.errors import ConfigError


def test_the_public_names_are_this_list():
    """The package exports what its users write and nothing else."""
    assert trackside.config.__all__ == ["ConfigDict", "apply_overrides", "load_config", "register", "save_config"]


def test_get_returns_a_field():
    """`get` reads a field by name."""
    assert tree.RunConfig(seed=4).get("seed") == 4


def test_get_returns_the_default_for_what_is_no_field():
    """A name that is not a field gives the default, even if it is a method."""
    config = tree.RunConfig()
    assert config.get("sed") is None
    assert config.get("to_dict", 5) == 5


def test_get_works_with_slots():
    """`get` works for a config without a `__dict__`."""
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


def test_a_misspelled_argument_is_refused():
    """The constructor suggests the field that was meant; it is a TypeError too, as Python raises."""
    message = r"^sed: RunConfig has no field 'sed'; it has seed, .* Did you mean 'seed'\?"
    with pytest.raises(ConfigError, match=message) as raised:
        tree.RunConfig(sed=3)  # pyright: ignore[reportCallIssue]
    assert isinstance(raised.value, TypeError)


def test_own_constructors_take_what_they_say():
    """A config with a constructor of its own may take more than its fields."""

    class Own(ConfigDict):
        def __init__(self, **kwargs):
            self.kwargs = kwargs

    assert Own(anything=1).kwargs == {"anything": 1}
    assert repr(inspect.signature(tree.RunConfig)).startswith("<Signature (seed")


def test_a_misspelt_attribute_is_refused():
    """Assigning to what is not a field is an error that suggests the field."""
    config = tree.RunConfig()
    with pytest.raises(ConfigError, match=r"^sed: RunConfig has no field 'sed'; it has seed, .* Did you mean 'seed'\?"):
        config.sed = 1  # pyright: ignore[reportAttributeAccessIssue]
    assert not hasattr(config, "sed")


def test_fields_private_names_and_properties_can_be_assigned():
    """What the class declares stays assignable, and so do private names."""

    @dataclass
    class DegreesConfig(ConfigDict):
        angle: float

        @property
        def turns(self) -> float:
            return self.angle / 360

        @turns.setter
        def turns(self, turns: float) -> None:
            self.angle = 360 * turns

    config = DegreesConfig(10.0)
    config.turns = 0.5
    config._note = "half a turn"
    assert config.angle == 180


def test_post_init_can_add_attributes():
    """A `__post_init__` may add what is not a field, also in a subclass, and it can be assigned again later."""

    @dataclass
    class BoxConfig(ConfigDict):
        width: int = 2

        def __post_init__(self):
            self.area = self.width**2  # pyright: ignore[reportAttributeAccessIssue]

    @dataclass
    class CubeConfig(BoxConfig):
        def __post_init__(self):
            super().__post_init__()
            self.volume = self.area * self.width  # pyright: ignore[reportAttributeAccessIssue]

    config = CubeConfig(3)
    config.volume = 28
    assert (config.area, config.volume) == (9, 28)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_tuple_in_a_list_field_becomes_a_list():
    """A tuple where a list is declared is stored as a list, so the config equals what is read back."""
    config = tree.RunConfig(modes=("a", "b"), hooks=(tree.HookConfig(2),))  # pyright: ignore[reportArgumentType]
    assert config.hooks == [tree.HookConfig(2)]
    assert config.modes == ["a", "b"]
    assert ConfigDict.from_dict(tree.RunConfig, config.to_dict()) == config


def test_a_tuple_stays_one_where_it_may_be_one():
    """Fields that allow tuples keep them."""

    @dataclass
    class ShapesConfig(ConfigDict):
        fixed: tuple[int, ...] = ()
        either: Sequence[int] = ()
        anything: Any = ()
        optional: list[int] | None = None

    config = ShapesConfig((1,), (2,), (3,), (4,))  # pyright: ignore[reportArgumentType]
    assert (config.fixed, config.either, config.anything, config.optional) == ((1,), (2,), (3,), [4])


def test_to_dict_names_every_class():
    """Each config in the tree, with or without a declared subclass, says of which class it is."""
    data = tree.EXAMPLE.to_dict()
    assert data["__class__"] == "RunConfig"
    assert data["output"]["__class__"] == "OutputConfig"
    assert [hook["__class__"] for hook in data["hooks"]] == ["TraceHookConfig", "SaveHookConfig"]


def test_an_instance_is_returned_as_it_is():
    """Data that is already the config is not copied."""
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
