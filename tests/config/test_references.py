"""Classes and functions in configs: found among what is imported or registered, and nowhere else."""

import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from tests.config import config_tree as tree
from trackside.config import ConfigDict, register
from trackside.errors import ConfigError


class Loss(Protocol):
    def __call__(self, x: float) -> float: ...


@dataclass
class RefsConfig(ConfigDict):
    cls: type | None = None
    net: type[tree.Net] | None = None
    either: type[tree.Net] | type[dict] | None = None
    fn: Callable | None = None
    loss: Loss | None = None
    both: type | Callable[..., Any] | None = None


def square(x: float) -> float:
    return x * x


register("refs.square", square)
register("refs.Net", tree.DeepNet)


def read(**data):
    return ConfigDict.from_dict(RefsConfig, data)


def round_trip(config):
    return ConfigDict.from_dict(RefsConfig, config.to_dict())


class Outer:
    class Inner:
        pass


@pytest.mark.parametrize("cls", [tree.Net, int, types.SimpleNamespace, Outer.Inner])
def test_a_class_is_written_as_where_it_is_defined(cls):
    """A class field holds module and qualname, also of nested classes."""
    config = RefsConfig(cls=cls)
    assert config.to_dict()["cls"] == f"{cls.__module__}.{cls.__qualname__}"
    assert round_trip(config) == config


def test_a_registered_class_is_written_by_its_name():
    """The registered name comes before the place of definition."""
    config = RefsConfig(cls=tree.DeepNet, net=tree.DeepNet, fn=tree.DeepNet, both=tree.DeepNet)
    assert config.to_dict()["cls"] == "refs.Net"
    assert round_trip(config) == config


def test_a_registered_function_is_written_by_its_name():
    """Functions are known by their registered name, in each kind of field that may hold one."""
    config = RefsConfig(fn=square, loss=square, both=square)
    assert config.to_dict()["both"] == "refs.square"
    assert round_trip(config) == config


def test_a_class_has_to_be_of_the_declared_family():
    """A field for subclasses of Net takes no other class, by name or in Python."""
    with pytest.raises(ConfigError, match=r"net: expected type\[Net\], got 'builtins.int'"):
        read(net="builtins.int")
    with pytest.raises(ConfigError, match=r"net: expected type\[Net\], got <class 'int'>"):
        RefsConfig(net=int)


def test_a_function_is_no_class():
    """An imported function does not become the value of a class field."""
    with pytest.raises(ConfigError, match=r"cls: .*import the module that defines it, or name it with.*'os.getcwd'"):
        read(cls="os.getcwd")


def test_an_imported_function_is_not_found():
    """A callable field knows registered names only, so that data cannot reach into modules."""
    for name in ("fn", "both", "loss"):
        with pytest.raises(ConfigError, match=rf"(?s)^{name}: .*refs\.square.*'os\.system'"):
            read(**{name: "os.system"})


def test_an_imported_class_is_no_registered_callable():
    """A field annotated Callable alone takes a class only by its registered name."""
    with pytest.raises(ConfigError, match=r"fn: expected a name given to trackside.config.register"):
        read(fn="config_tree.Net")
    with pytest.raises(ConfigError, match=r"fn: cannot write .*register"):
        RefsConfig(fn=tree.Net).to_dict()


@pytest.mark.parametrize("name", ["cls", "fn", "both"])
def test_no_module_is_imported_because_of_data(name):
    """The name of a class in a module that is not imported is refused, and the module is not imported."""
    module = "wave"
    sys.modules.pop(module, None)
    with pytest.raises(ConfigError, match=name):
        read(**{name: f"{module}.Wave_read"})
    assert module not in sys.modules


def test_a_module_that_loads_lazily_is_not_asked(monkeypatch):
    """A module's own `__getattr__`, which may import, is never called."""
    lazy = types.ModuleType("lazy_example")
    lazy.__getattr__ = lambda name: pytest.fail(f"asked for {name}")  # pyright: ignore
    monkeypatch.setitem(sys.modules, "lazy_example", lazy)
    with pytest.raises(ConfigError, match=r"lazy_example\.Net"):
        read(cls="lazy_example.Net")


def test_a_lazily_loaded_module_is_not_executed(monkeypatch, tmp_path):
    """A module under importlib's lazy loader is not run by a look at its names."""
    (tmp_path / "sleeping_example.py").write_text("raise SystemExit('was run')")
    spec = importlib.util.spec_from_file_location("sleeping_example", tmp_path / "sleeping_example.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sleeping_example", module)
    spec.loader.exec_module(module)
    with pytest.raises(ConfigError, match=r"sleeping_example\.Net"):
        read(cls="sleeping_example.Net")


def test_a_local_class_has_to_be_registered():
    """A class that cannot be found by its name cannot be written; the error says what to do."""

    class Local:
        pass

    with pytest.raises(ConfigError, match=r"cls: cannot write .*Local.*register"):
        RefsConfig(cls=Local).to_dict()
    register("refs.Local", Local)
    assert round_trip(RefsConfig(cls=Local)).cls is Local


def test_a_class_itself_is_taken_as_it_is():
    """From Python, the value of the field can be given instead of its name."""
    assert read(cls=tree.Net, fn=square) == RefsConfig(cls=tree.Net, fn=square)


def test_a_union_of_classes_takes_either():
    """type[A] | type[B] is checked against both."""
    assert round_trip(RefsConfig(either=dict)).either is dict
    with pytest.raises(ConfigError, match="either"):
        read(either="builtins.int")
