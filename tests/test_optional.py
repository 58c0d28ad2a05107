import importlib
import sys
import types

import pytest

from trackside.errors import MissingExtraError
from trackside.optional import EXTRAS, require


@pytest.mark.parametrize("name", ["equinox", "sklearn.datasets"])
def test_installed_package_is_imported(name, monkeypatch):
    """A package that is there is returned as the module itself, submodules included."""
    there = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name.partition(".")[0], types.ModuleType("parent"))
    monkeypatch.setitem(sys.modules, name, there)
    assert require(name, "the demo") is there


@pytest.mark.parametrize(("module", "extra"), sorted(EXTRAS.items()))
def test_missing_package_names_its_extra(module, extra, monkeypatch):
    """Without the package, the error says what needs it and the command that installs it."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"logging there needs .*'{module}'.*'trackside\[{extra}\]'"):
        require(module, "logging there")


def test_missing_package_is_an_import_error(monkeypatch):
    """Code that guards imports with `except ImportError` also catches a missing extra."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError):
        require("wandb", "logging")


def test_broken_dependency_keeps_its_own_error(monkeypatch):
    """Where the package is there and something that it needs is not, its own error comes through."""

    def broken(name: str) -> None:
        raise ModuleNotFoundError("No module named 'protobuf'", name="protobuf")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="protobuf") as caught:
        require("tensorboardX", "logging")
    assert not isinstance(caught.value, MissingExtraError)
