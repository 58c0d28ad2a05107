"""Curves of metrics as lines of a chart, over steps or something else: what the pages of one run and of two share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trackside.report.html.charts import (
    LOG_AXIS,
    Chart,
    OtherAxis,
    View,
    as_interval_means,
    line,
    numbers,
    option_buttons,
    smoothing_slider,
    view_buttons,
)
from trackside.report.html.markup import Child, Html, element
from trackside.runs import MetricTable
from trackside.runs.downsample import spike_indices
from trackside.runs.metric_curves import Curve, is_flattened
from trackside.runs.run_axes import RunAxes, time_unit_of

_VIEWS = ("Auto", "Linear", "Logarithmic")


@dataclass(frozen=True)
class MetricLine:
    """A line, and where its points are on any axis."""

    trace: dict[str, Any]
    steps: np.ndarray
    t: np.ndarray
    axes: RunAxes
    """Those of its run."""
    is_smoothable: bool = False


def metric_line(rows: MetricTable, curve: Curve, axes: RunAxes, name: str, colour: str, num_points: int) -> MetricLine:
    """A curve as a line: levels for means over intervals, points for a test.

    Args:
        rows: The metrics of the curve's mode.
        curve: The curve.
        axes: The axes of its run.
        name: Its name in the legend.
        colour: Its color.
        num_points: About how many points to draw.
    """
    values = rows[curve.name]
    present = rows.present(curve.name)
    kept = present[spike_indices(values[present], num_points)]
    hover = "%{y:.5g}<extra>%{fullData.name}</extra>"
    trace = line(rows.step[kept], values[kept], name, colour, hovertemplate=hover)
    if curve.mode == "test":
        trace["mode"] = "markers"
    elif curve.covers_interval:
        trace = as_interval_means(trace)
    return MetricLine(trace, rows.step[kept], rows.t[kept], axes, is_smoothable=curve.mode == "train")


def metric_chart(identifier: str, title: str, lines: Sequence[MetricLine], longest_s: float) -> Chart:
    """The lines of one metric in one chart.

    Args:
        identifier: Its place in the page.
        title: The metric.
        lines: Its curves.
        longest_s: The longest time of all charts of metrics, which have the same unit.
    """
    return Chart(
        identifier,
        f"{title} over the steps",
        [one.trace for one in lines],
        {"xaxis": {"title": {"text": "step"}}, "hovermode": "x unified"},
        _views([one.trace["y"] for one in lines]),
        size="small",
        axes=_other_axes(lines, longest_s),
        smoothable=[index for index, one in enumerate(lines) if one.is_smoothable],
    )


def metric_toolbar(charts: Sequence[Chart], search: Child = None) -> Html:
    """What smooths and scales all charts of metrics.

    Args:
        charts: The charts.
        search: A field to filter them by.
    """
    ids = [chart.id for chart in charts]
    counts_examples = any("examples" in chart.axes for chart in charts)
    axes = {"step": "Steps", "elapsed": "Time", **({"examples": "Examples"} if counts_examples else {})}
    buttons = [smoothing_slider(ids), option_buttons(ids, "axis", axes), view_buttons(ids, _VIEWS)]
    return element("div", search, buttons, class_="toolbar")


def _views(columns: Sequence[Sequence[float | int | None]]) -> list[View]:
    """The view that suits the values, linear, and logarithmic."""
    values = np.array([value for column in columns for value in column if value is not None], float)
    logarithmic = {"yaxis": LOG_AXIS}
    layouts = (logarithmic if is_flattened(values) else {}, {}, logarithmic)
    return [View(title, layout) for title, layout in zip(_VIEWS, layouts, strict=True)]


def _other_axes(lines: Sequence[MetricLine], longest_s: float) -> dict[str, OtherAxis]:
    """Time since the start, and examples if they were counted."""
    unit_s, unit = time_unit_of(longest_s)
    pauses = ", without pauses" if any(one.axes.pauses for one in lines) else ""
    elapsed = [numbers(one.axes.elapsed_s(one.t) / unit_s) for one in lines]
    found = {"elapsed": OtherAxis(f"{unit} since the start{pauses}", elapsed)}
    if all(one.axes.counts_examples for one in lines):
        found["examples"] = OtherAxis("examples", [numbers(np.round(one.axes.examples(one.steps))) for one in lines])
    return found
