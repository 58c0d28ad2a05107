"""Differences as bars around zero with error bars, and as a table."""

from collections.abc import Callable, Sequence
from typing import Any

from trackside.compare import Difference
from trackside.report.html.charts import Chart, numbers, time_unit
from trackside.report.html.comparison.values import (
    EXPLANATIONS,
    Judgement,
    change_text,
    interval_text,
    is_relevant,
    judge,
    largest_value,
    relative_text,
    value_text,
)
from trackside.report.html.markup import Cell, Column, Html, element, table, term
from trackside.text import chart_label

BEFORE_COLOUR, AFTER_COLOUR = "--series-4", "--accent"
"""Of the first and the second run, in every chart."""

MAX_AXIS_LABEL = 28
"""Characters of the name next to a bar; more would leave no room for the bars on a phone."""
_COLOURS: dict[Judgement, str] = {"more": "--severe", "less": "--good"}
_PILLS: dict[Judgement, str] = {"more": "bad", "less": "good"}

NameOf = Callable[[Difference], str]
"""What a difference is called; `Html` in tables, where its parts are set apart."""


def change_chart(chart_id: str, description: str, differences: Sequence[Difference], name_of: NameOf) -> Chart:
    """The change of each time per step, with its interval where there is one.

    Args:
        chart_id: Its id in the page.
        description: What it shows, for those who cannot see it.
        differences: The times, from top to bottom.
        name_of: What each is called.
    """
    ends = [abs(end) for one in differences for end in (one.change, one.low, one.high) if end is not None]
    size, unit = time_unit(max(ends, default=0.0))
    largest = largest_value(differences)
    rows = list(enumerate(differences))
    # Two traces: plotly would mark the end of a bar without an interval as if it had one of no length.
    groups = [[row for row in rows if (row[1].low is None) == is_bare] for is_bare in (False, True)]
    traces = [_change_trace(group, name_of, largest, size) for group in groups if group]
    layout = {
        "xaxis": _value_axis(f"change, {unit} per step") | {"zeroline": True, "zerolinecolor": "--muted"},
        "yaxis": _name_axis(differences, name_of),
        "hovermode": "closest",
        "barmode": "overlay",
        "bargap": _gap(len(differences)),
    }
    return Chart(chart_id, description, traces, layout, size=_size(len(differences)), has_legend=False)


def _change_trace(
    rows: Sequence[tuple[int, Difference]], name_of: NameOf, largest: float, size: float
) -> dict[str, Any]:
    """Bars, all with an interval or all without."""
    spans = [
        (max(one.change - one.low, 0.0), max(one.high - one.change, 0.0))
        for _, one in rows
        if one.low is not None and one.high is not None
    ]
    error = {
        "type": "data",
        "symmetric": False,
        "array": numbers([span[1] / size for span in spans]),
        "arrayminus": numbers([span[0] / size for span in spans]),
        "color": "--text",
        "thickness": 1.2,
        "width": 4,
    }
    return {
        "type": "bar",
        "orientation": "h",
        "x": numbers([one.change / size for _, one in rows]),
        "y": [row for row, _ in rows],
        "name": "change",
        "marker": {"color": [_COLOURS.get(judge(one, largest), "--muted") for _, one in rows]},
        "customdata": [_hover(one, name_of, largest) for _, one in rows],
        "hovertemplate": "%{customdata}<extra></extra>",
        **({"error_x": error} if spans else {}),
    }


def values_chart(
    chart_id: str, description: str, differences: Sequence[Difference], name_of: NameOf, run_names: tuple[str, str]
) -> Chart:
    """Both values of each time per step, one above the other.

    Args:
        chart_id: Its id in the page.
        description: What it shows, for those who cannot see it.
        differences: The times, from top to bottom.
        name_of: What each is called.
        run_names: What the runs are called.
    """
    largest = largest_value(differences)
    size, unit = time_unit(largest)
    sides = (
        (run_names[0], BEFORE_COLOUR, [one.before for one in differences]),
        (run_names[1], AFTER_COLOUR, [one.after for one in differences]),
    )
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "x": numbers([(value or 0.0) / size for value in values]),
            "y": list(range(len(differences))),
            "name": chart_label(name),
            "marker": {"color": colour},
            "customdata": [_hover(one, name_of, largest) for one in differences],
            "hovertemplate": "%{customdata}<extra></extra>",
        }
        for name, colour, values in sides
    ]
    layout = {
        "xaxis": _value_axis(f"{unit} per step") | {"rangemode": "tozero"},
        "yaxis": _name_axis(differences, name_of),
        "hovermode": "closest",
        "barmode": "group",
        "bargap": _gap(len(differences)),
    }
    return Chart(chart_id, description, traces, layout, size=_size(len(differences)))


def _value_axis(title: str) -> dict[str, Any]:
    return {"title": {"text": title}}


def _name_axis(differences: Sequence[Difference], name_of: NameOf) -> dict[str, Any]:
    """Names at numbered places, so that two names cut to the same text stay two."""
    return {
        "tickvals": list(range(len(differences))),
        "ticktext": [chart_label(name_of(one), MAX_AXIS_LABEL) for one in differences],
        "range": [len(differences) - 0.4, -0.6],
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
    }


def _size(num_rows: int) -> str:
    return "small" if num_rows <= 6 else "medium" if num_rows <= 10 else "large"


def _gap(num_rows: int) -> float:
    """How much of a row stays empty: few bars would be very thick."""
    return 0.4 if num_rows > 3 else 0.7


def _hover(one: Difference, name_of: NameOf, largest: float) -> str:
    interval = interval_text(one)
    lines = [
        *(chart_label(text) for text in _full_names(one, name_of)),
        f"{value_text(one, one.before)} → {value_text(one, one.after)}",
        f"{change_text(one)}{f', 95 % interval {interval}' if interval else ''}",
        judge(one, largest),
    ]
    return "<br>".join(lines)


def _full_names(one: Difference, name_of: NameOf) -> list[str]:
    """What is pointed at: a scope and its phase in full, an operation and its scope, or the name of anything else."""
    if not one.phase:
        return [name_of(one)]
    return [one.name, f"{one.scope}, {one.phase}"] if one.scope else [f"{one.name}, {one.phase}"]


def change_table(
    title: str, differences: Sequence[Difference], name_of: NameOf, caption: str, largest: float | None = None
) -> Html:
    """Differences line by line.

    Args:
        title: What the names are.
        differences: The differences, from top to bottom.
        name_of: What each is called.
        caption: What the table holds.
        largest: The largest value of their kind; that of these if left out.
    """
    largest = largest_value(differences) if largest is None else largest
    is_code = any(one.phase for one in differences)  # names from the program
    has_interval = any(one.low is not None for one in differences)
    columns = [
        Column(title, is_code=is_code, is_long=is_code),
        Column("before", is_number=True),
        Column("after", is_number=True, is_minor=is_code),  # names leave little room
        Column("change", is_number=True),
        Column(
            "relative", is_number=True, is_minor=True, explanation="The change as a share of the first run's value."
        ),
        *([_interval_column()] if has_interval else []),
        Column("verdict", is_minor=True),
    ]
    rows = [
        [
            Cell(name_of(one), f"{one.name} {one.scope} {one.phase}"),
            Cell(value_text(one, one.before), one.before or 0.0),
            Cell(value_text(one, one.after), one.after or 0.0),
            Cell(_softened(one, change_text(one), largest), one.change),
            Cell(relative_text(one), "Infinity" if one.relative_change is None else one.relative_change),
            *([Cell(interval_text(one), one.change)] if has_interval else []),
            _judgement_cell(judge(one, largest)),
        ]
        for one in differences
    ]
    return table(columns, rows, caption)


def _softened(one: Difference, text: str, largest: float) -> Html:
    """A change that is not significant is shown in a soft color."""
    return element("span", text, class_=None if is_relevant(judge(one, largest)) else "soft")


def _interval_column() -> Column:
    explanation = "The confidence interval of the change, from a block bootstrap over neighboring steps."
    return Column("95 % interval", is_number=True, is_minor=True, explanation=explanation)


def _judgement_cell(judgement: Judgement) -> Cell:
    pill = _PILLS.get(judgement)
    shown = term(judgement, EXPLANATIONS[judgement])
    return Cell(element("span", shown, class_=f"status {pill}" if pill else "soft"), judgement)
