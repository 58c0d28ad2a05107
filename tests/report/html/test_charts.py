"""Charts as data: numbers are JSON, colours are names."""

import numpy as np
import pytest

from trackside.report.html.charts import (
    Chart,
    as_interval_means,
    byte_unit,
    line,
    numbers,
    part_classes,
    time_unit,
)


def test_numbers_become_json() -> None:
    """What is not finite becomes null, whole numbers have no point, others six digits."""
    assert numbers(np.array([1.0, np.nan, np.inf, 0.123456789, 1e20])) == [1, None, None, 0.123457, 1e20]
    assert numbers(np.array([3, 4])) == [3, 4]


def test_legend_has_each_name_once_as_text() -> None:
    """The legend has the name as the run has it, for the script to write as text."""
    chart = Chart("c", "", [line([1], [2], "<b>", "--accent"), line([1], [3], "<b>", "--accent")])
    legend = chart.to_dict()["legend"]
    assert [entry["text"] for entry in legend] == ["<b>"]


def test_legend_marks_curves_of_one_colour_differently() -> None:
    """Training, validation and test of one run have its color, so their marks look as their curves do."""
    pale = line([1], [2], "train", "--accent", opacity=0.55)
    points = line([1], [2], "test", "--accent", mode="markers")
    legend = Chart("c", "", [pale, line([1], [2], "val", "--accent"), points]).to_dict()["legend"]
    assert [entry["mark"] for entry in legend] == ["pale", "swatch", "dot"]


def test_parts_have_one_colour_each() -> None:
    """Each callback has its own, whatever it is called, and a part of a newer version is among the others."""
    assert part_classes(["data_wait", "callbacks", "new"]) == {
        "data_wait": "part-data-wait",
        "callbacks": "part-callbacks",
        "new": "part-other",
    }
    callbacks = ["callback/<x>", "callback/JaxProfiler", *(f"callback/Mine{number}" for number in range(6))]
    assert sorted(part_classes(callbacks).values()) == [f"callback-{number}" for number in range(8)]


def test_colours_of_the_library_do_not_depend_on_others() -> None:
    """A callback of the library has its colour in every report, and more callbacks than colours share some."""
    alone, among = part_classes(["callback/EMA"]), part_classes([f"callback/{name}" for name in ("A", "EMA", "B")])
    assert alone["callback/EMA"] == among["callback/EMA"]
    assert len(part_classes([f"callback/{number}" for number in range(20)])) == 20


def test_interval_means_are_levels_up_to_their_end() -> None:
    """The level of a mean ends at its own x and begins at the one before; the rest of the line stays."""
    trace = as_interval_means(line([0, 10], [1, 1], "loss", "--accent"))
    assert trace["line"] == {"color": "--accent", "width": 1.6, "shape": "vh"}


@pytest.mark.parametrize(("value", "unit"), [(2.0, "s"), (0.02, "ms"), (2e-7, "us"), (0.0, "us")])
def test_axis_of_times_has_the_unit_of_a_typical_one(value: float, unit: str) -> None:
    """A typical time has few digits; the smallest unit serves what is smaller."""
    assert time_unit(value)[1] == unit


@pytest.mark.parametrize(("value", "unit"), [(3e9, "GB"), (2e6, "MB"), (5.0, "B"), (0.0, "B")])
def test_axis_of_bytes_has_the_unit_of_the_largest(value: float, unit: str) -> None:
    """The largest value has few digits."""
    assert byte_unit(value)[1] == unit
