"""The reference page: up to date, and with a sentence for every field of every config."""

import dataclasses

import pytest

import trackside
from tools import reference
from trackside.config import ConfigDict


def public_configs() -> list[type]:
    modules = [getattr(trackside, name) for name in trackside.__all__]
    names = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return [cls for cls in names.values() if issubclass(cls, ConfigDict) and dataclasses.is_dataclass(cls)]


def test_the_page_is_up_to_date() -> None:
    """docs/reference.md is what `python -m tools.reference` writes."""
    assert reference.PAGE.read_text(encoding="utf-8") == reference.render(), "run: python -m tools.reference"


@pytest.mark.parametrize("cls", public_configs(), ids=lambda cls: cls.__name__)
def test_every_field_has_a_sentence(cls: type) -> None:
    """No field of a public config is without an explanation."""
    fields = {field.name for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
    assert fields - reference.field_sentences(cls).keys() == set()
