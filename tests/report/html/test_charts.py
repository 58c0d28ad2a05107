"""Charts as data: labels are literal, numbers are JSON, colours are names."""

import numpy as np
import pytest

from trackside.report.html.charts import (
    Chart,
    as_interval_means,
    byte_unit,
    label,
    line,
    numbers,
    part_class,
    time_unit,
)


def test_lone_surrogates_become_question_marks() -> None:
    """A name that is not valid Unicode can be part of a chart."""
    assert label("\udcff") == "?"


@pytest.mark.parametrize("text", ["<b>x</b>", "&lt;", "a & b", "<a href='javascript:1'>x</a>"])
def test_labels_are_literal(text: str) -> None:
    """A label has no markup for plotly to read, and says what the text said."""
    shown = label(text)
    assert "<" not in shown
    assert shown.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") == text


def test_labels_are_short_and_on_one_line() -> None:
    """A long name is cut, a line break becomes a space."""
    assert label("a\nb") == "a b"
    assert label("x" * 500) == "x" * 79 + "…"


def test_numbers_become_json() -> None:
    """What is not finite becomes null, whole numbers have no point, others six digits."""
    assert numbers(np.array([1.0, np.nan, np.inf, 0.123456789, 1e20])) == [1, None, None, 0.123457, 1e20]
    assert numbers(np.array([3, 4])) == [3, 4]


def test_legend_has_each_name_once_as_text() -> None:
    """The legend has the name as the run has it, for the script to write as text."""
    chart = Chart("c", "", [line([1], [2], "<b>", "--accent"), line([1], [3], "<b>", "--accent")])
    legend = chart.to_dict()["legend"]
    assert [entry["text"] for entry in legend] == ["<b>"]


def test_parts_have_one_colour_each() -> None:
    """Each callback of the library has its own, and a part of a newer version is among the others."""
    assert [part_class(part) for part in ("data_wait", "callbacks", "new")] == [
        *("part-data-wait", "part-callbacks", "part-other")
    ]
    assert part_class("callback/JaxProfiler") != part_class("callback/MemoryProfiler")
    assert part_class("callback/<x>") in {f"callback-{number}" for number in range(8)}


def test_interval_means_are_levels_up_to_their_end() -> None:
    """The level of a mean ends at its own x and begins at the one before; the rest of the line stays."""
    trace = as_interval_means(line([0, 10], [1, 1], "loss", "--accent"))
    assert trace["line"] == {"color": "--accent", "width": 1.6, "shape": "vh"}


@pytest.mark.parametrize(("value", "unit"), [(2.0, "s"), (0.02, "ms"), (2e-7, "µs"), (0.0, "µs")])
def test_axis_of_times_has_the_unit_of_a_typical_one(value: float, unit: str) -> None:
    """A typical time has few digits; the smallest unit serves what is smaller."""
    assert time_unit(value)[1] == unit


@pytest.mark.parametrize(("value", "unit"), [(3e9, "GB"), (2e6, "MB"), (5.0, "B"), (0.0, "B")])
def test_axis_of_bytes_has_the_unit_of_the_largest(value: float, unit: str) -> None:
    """The largest value has few digits."""
    assert byte_unit(value)[1] == unit
