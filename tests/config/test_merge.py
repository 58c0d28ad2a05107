"""A file over defaults in Python: what it names is replaced, what it leaves out stays."""

import pytest

from tests.config import config_tree as tree
from trackside.config import load_config
from trackside.errors import ConfigError

BASE = tree.RunConfig(
    seed=5,
    modes=["a", "b"],
    output=tree.OutputConfig(every_n_steps=3, sinks=[tree.FileSinkConfig()]),
    hooks=[tree.HookConfig(2)],
)


@pytest.fixture
def load(tmp_path):
    def load(text, config_class=tree.RunConfig, base=BASE, **options):
        (tmp_path / "a.yaml").write_text(text)
        return load_config(config_class, tmp_path / "a.yaml", base=base, **options)

    return load


def test_fields_that_the_file_leaves_out_stay(load):
    """One field is replaced; the others keep the values of the base, which is unchanged."""
    config = load("lr: 0.5")
    assert config == tree.RunConfig(lr=0.5, seed=BASE.seed, modes=BASE.modes, output=BASE.output, hooks=BASE.hooks)
    assert BASE.lr == tree.RunConfig().lr


def test_nested_configs_are_merged(load):
    """A nested config keeps the fields that the file leaves out."""
    assert load("output: {path: x}").output.sinks == BASE.output.sinks
    assert load("output: {path: x}").output.every_n_steps == 3


def test_lists_are_replaced(load):
    """A list in the file replaces the whole list."""
    config = load("modes: [c]\nhooks: [{__class__: SaveHookConfig, monitor: loss}]")
    assert config.modes == ["c"]
    assert config.hooks == [tree.SaveHookConfig(monitor="loss")]


def test_another_class_starts_from_its_own_defaults(load):
    """A nested config of another class takes nothing from the one that it replaces."""
    base = tree.RunConfig(choice=tree.HookConfig(every_n_steps=9))
    assert load("choice: {__class__: SaveHookConfig}", base=base).choice == tree.SaveHookConfig()
    assert load("choice: {main_process_only: true}", base=base).choice == tree.HookConfig(9, True)


def test_several_configs_by_name(load):
    """A file of several configs is merged into a dict of them; those it does not name stay."""
    base = {"run": BASE, "output": tree.OutputConfig()}
    merged = load("run: {seed: 6}", dict, base)
    assert merged["run"].seed == 6
    assert merged["run"].modes == ["a", "b"]
    assert merged["output"] is base["output"]
    with pytest.raises(ConfigError, match=r"a\.yaml: rnu: there is no config of this name.*Did you mean 'run'"):
        load("rnu: {seed: 6}", dict, base)


def test_typos_are_refused(load):
    """Unknown fields are refused with their path, unless they are to be ignored."""
    with pytest.raises(
        ConfigError, match=r"a\.yaml: output\.pth: OutputConfig has no field 'pth'.*Did you mean 'path'"
    ):
        load("output: {pth: x}")
    assert load("output: {pth: x}", ignore_extensive_attributes=True) == BASE


def test_the_checks_of_a_config_see_the_merged_result(load):
    """A config's own check that fails on the merged values is an error with its path."""
    base = tree.RunConfig(window=tree.Window(5, 10))
    with pytest.raises(ConfigError, match=r"a\.yaml: window: .*end=3 is before start=5"):
        load("window: {end: 3}", base=base)


def test_a_base_of_another_class_is_refused(load):
    """The base has to be what the file describes."""
    with pytest.raises(ConfigError, match="base: expected RunConfig"):
        load("seed: 1", base=tree.OutputConfig())
