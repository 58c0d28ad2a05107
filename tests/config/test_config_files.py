"""Configs in files: read with errors that name the file, written whole or not at all."""

import json
import os

import pytest

from tests.config import config_tree as tree
from trackside.config import load_config, save_config
from trackside.errors import ConfigError


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a.yml", "a.JSON"])
def test_a_saved_config_is_loaded_equal(tmp_path, name):
    """JSON and YAML files both give the config back."""
    save_config(tree.EXAMPLE, tmp_path / name)
    loaded = load_config(tree.RunConfig, tmp_path / name)
    assert loaded == tree.EXAMPLE


@pytest.mark.parametrize("text", ["1e-3", "2024-01-01", "yes", "null", "1_000", "12:30:45", "nan", "a: b # c", "ü\n"])
def test_text_that_looks_like_something_else_stays_text(tmp_path, text):
    """A string survives YAML even if it could be read as a number, date or boolean."""
    save_config(tree.RunConfig(name=text), tmp_path / "a.yaml")
    assert load_config(tree.RunConfig, tmp_path / "a.yaml").name == text


def test_yaml_numbers_need_no_dot(tmp_path):
    """1e-3 is a float and a date a string."""
    (tmp_path / "a.yaml").write_text("lr: 1e-3\nname: 2024-01-01\nseed: 3\nmodes: [a, b]\n")
    config = load_config(tree.RunConfig, str(tmp_path / "a.yaml"))
    assert config == tree.RunConfig(lr=0.001, name="2024-01-01", seed=3, modes=["a", "b"])


@pytest.mark.parametrize("text", ["\x85", "\u2028", "\ufeff", "\U0001f600", "\t\r\n", "\ud800"])
def test_unusual_characters_survive_files(tmp_path, text):
    """Line ends, marks and lone surrogates are escaped in both formats."""
    for name in ("a.json", "a.yaml"):
        save_config(tree.RunConfig(name=text), tmp_path / name)
        assert load_config(tree.RunConfig, tmp_path / name).name == text


def test_several_configs_share_a_file(tmp_path):
    """A mapping of configs is written and read as one."""
    configs = {"run": tree.RunConfig(seed=2), "net": tree.NetConfig()}
    save_config(configs, tmp_path / "a.json")
    assert load_config(dict, tmp_path / "a.json") == configs


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "{", "malformed"),
        ("a.yaml", "a: [1", "malformed"),
        ("a.yaml", "a: !!python/object/apply:os.getcwd []", "malformed"),
        ("a.json", "[1]", r"expected a mapping of fields at the top level, got \[1\]"),
        ("a.yaml", "", "expected a mapping of fields at the top level, got None"),
        ("a.toml", "", "expected a file that ends in .json, .yaml, .yml, got '.toml'"),
        ("a.json", '{"seed": "x"}', "seed: expected int, got 'x'"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path, name, text, words):
    """The error begins with the file and says what is wrong in it."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{name}: .*{words}"):
        load_config(tree.RunConfig, path)


def test_a_missing_file_is_named(tmp_path):
    """The error says that the file does not exist."""
    with pytest.raises(ConfigError, match=r"gone.json: file not found"):
        load_config(tree.RunConfig, tmp_path / "gone.json")


def test_a_file_that_is_no_text_is_named(tmp_path):
    """Bytes that are not UTF-8 are an error that names the file."""
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"a.json: cannot be read"):
        load_config(tree.RunConfig, tmp_path / "a.json")


def test_the_options_of_from_dict_apply(tmp_path):
    """A file can be read as strictly as data."""
    (tmp_path / "a.json").write_text('{"sed": 1}')
    with pytest.raises(ConfigError, match=r"a.json: sed: RunConfig has no field 'sed'"):
        load_config(tree.RunConfig, tmp_path / "a.json")


def test_what_is_no_config_is_not_saved(tmp_path):
    """Only configs and mappings of them are written."""
    with pytest.raises(ConfigError, match="save_config: expected a config"):
        save_config(3, tmp_path / "a.json")


def test_folders_are_made(tmp_path):
    """Saving creates a folder that does not exist."""
    save_config(tree.HookConfig(), tmp_path / "x" / "y" / "a.json")
    assert json.loads((tmp_path / "x" / "y" / "a.json").read_text())["__class__"] == "HookConfig"


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    """The file is replaced in one step. If that fails, the old one remains and nothing else is left behind."""
    path = tmp_path / "a.json"
    save_config(tree.HookConfig(1), path)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save_config(tree.HookConfig(2), path)
    assert load_config(tree.HookConfig, path) == tree.HookConfig(1)
    assert list(tmp_path.iterdir()) == [path]


def test_a_config_that_cannot_be_written_leaves_no_file(tmp_path):
    """The config is checked before the file is touched."""
    with pytest.raises(ConfigError, match="seed"):
        save_config(tree.RunConfig(seed="x"), tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_path():
    """Class and path that were swapped are named."""
    with pytest.raises(ConfigError, match="path: expected the path of a file, got <class"):
        load_config("run.yaml", tree.RunConfig)
