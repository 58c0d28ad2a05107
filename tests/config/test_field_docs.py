"""The docstrings of configs: as written, then the fields with their types, defaults and sentences."""

import abc
import dataclasses
import inspect
import linecache
import pickle
import pydoc
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import trackside
from trackside.callbacks import EMAConfig
from trackside.config import ConfigDict
from trackside.config.field_docs import field_sentences


@dataclass
class Sizes(ConfigDict):
    """How large it is."""

    width: int
    """The width
    of each layer."""
    names: list[str] = field(default_factory=lambda: ["a", "b"])
    activation: type = dict
    """What is called."""


@dataclass(frozen=True, slots=True)
class Frozen(ConfigDict):
    """A config with slots."""

    depth: int = 2
    """How many layers."""


@dataclass
class Derived(Sizes):
    width: int = 8
    depth: int = 3
    """How many."""


class Undecorated(Derived):
    """Only a method more."""


class Silent(Derived):
    pass


class WithMeta(ConfigDict, abc.ABC):
    def __init_subclass__(cls, **kwargs: object):
        super().__init_subclass__(**kwargs)


@dataclass
class BelowMeta(WithMeta):
    rate: float = 0.5
    """How often."""


def public_configs() -> list[type]:
    modules = [getattr(trackside, name) for name in trackside.__all__]
    names = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return [cls for cls in names.values() if issubclass(cls, ConfigDict) and dataclasses.is_dataclass(cls)]


@pytest.mark.parametrize("cls", public_configs(), ids=lambda cls: cls.__name__)
def test_every_public_field_has_a_sentence(cls: type) -> None:
    """No field of a public config is without an explanation."""
    fields = {field.name for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
    assert fields - field_sentences(cls).keys() == set()


def test_docstring_lists_fields() -> None:
    """Each field is shown with its type, its default and its sentence, if there are any."""
    assert Sizes.__doc__ == (
        "How large it is.\n"
        "\n"
        "Fields:\n"
        "    width: int\n"
        "        The width of each layer.\n"
        "    names: list[str] = ['a', 'b']\n"
        "    activation: type = dict\n"
        "        What is called."
    )


def test_help_shows_fields() -> None:
    """`help(EMAConfig)` shows the fields of the config and of its bases. IPython, which asks `inspect`, does too."""
    for text in (pydoc.plain(pydoc.render_doc(EMAConfig)), str(inspect.getdoc(EMAConfig))):
        assert "decay: float = 0.999" in text
        assert "The weight of the old average in each step." in text
        assert "every_n_epochs: int = 1" in text


def test_keyword_only_fields_are_last() -> None:
    """The fields are in the order of the signature."""
    doc = str(EMAConfig.__doc__)
    assert doc.index("decay: float") < doc.index("every_n_epochs: int")


def test_slots_build_the_class_twice() -> None:
    """A dataclass with slots has its fields in the docstring, once."""
    assert str(Frozen.__doc__).count("How many layers.") == 1
    assert str(Frozen().__doc__).startswith("A config with slots.")


def test_subclass_without_docstring() -> None:
    """A config without a docstring lists its fields; a sentence of its base serves a field that it declares again."""
    assert str(inspect.getdoc(Derived)).startswith("Fields:\n    width: int = 8\n        The width of each layer.\n")
    assert "How many." in str(Derived.__doc__)


def test_undecorated_subclass() -> None:
    """A subclass that is not decorated shows its bases' fields, below its docstring if it has one."""
    assert str(Undecorated.__doc__).startswith("Only a method more.\n\nFields:\n    width: int = 8\n")
    assert Silent.__doc__ is None
    assert inspect.getdoc(Silent) == inspect.getdoc(Derived)


def test_metaclass_and_hook_in_between() -> None:
    """The class statement is found past a metaclass and an `__init_subclass__` of the user."""
    assert field_sentences(BelowMeta) == {"rate": "How often."}


def test_notebook_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A config of a notebook's cell, which is in no file, has its sentences; of two cells, the right ones."""
    namespaces = []
    for number, sentence in enumerate(("First.", "Second.")):
        cell = (
            "from dataclasses import dataclass\nfrom trackside.config import ConfigDict\n\n"
            f'@dataclass\nclass InCell(ConfigDict):\n    size: int = 1\n    """{sentence}"""\n'
        )
        name = f"<cell {number}>"
        monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
        namespaces.append({"__name__": "__main__"})
        exec(compile(cell, name, "exec"), namespaces[-1])
    assert [field_sentences(namespace["InCell"]) for namespace in namespaces] == [
        {"size": "First."},
        {"size": "Second."},
    ]


def test_script(tmp_path: Path) -> None:
    """A config of a script that runs as `__main__` has its sentences."""
    script = tmp_path / "train.py"
    script.write_text(
        "from dataclasses import dataclass\nfrom trackside.config import ConfigDict\n\n"
        '@dataclass\nclass Mine(ConfigDict):\n    size: int = 1\n    """How large."""\n\nhelp(Mine)\n'
    )
    printed = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    assert " |  Fields:\n |      size: int = 1\n |          How large.\n" in printed


@pytest.mark.parametrize("file", ["<string>", str(Path(__file__).parents[2] / "pyproject.toml")])
def test_without_source(file: str) -> None:
    """Where there is no source, or none of Python, the fields are listed without sentences."""
    code = '@dataclass\nclass NoSource(ConfigDict):\n    """Written."""\n    size: int | None = 1\n    """Lost."""\n'
    namespace: dict = {"dataclass": dataclass, "ConfigDict": ConfigDict, "__name__": "made_up"}
    exec(compile(code, file, "exec"), namespace)
    assert namespace["NoSource"].__doc__ == "Written.\n\nFields:\n    size: int | None = 1"


def test_defining_and_using_a_config_reads_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is read for those who ask for the docstring only."""

    def refuse(*args: object) -> list[str]:
        raise AssertionError("the source is read")

    monkeypatch.setattr(linecache, "getlines", refuse)

    @dataclass(slots=True)
    class Quiet(ConfigDict):
        """Some sentence."""

        size: int = 1

    assert ConfigDict.from_dict(Quiet, Quiet(3).to_dict()) == Quiet(3)
    assert pickle.loads(pickle.dumps(Sizes(3))) == Sizes(3)
    with pytest.raises(AssertionError, match="the source is read"):
        _ = Quiet.__doc__
