"""Step time over the run, and below it what happened when."""

from typing import Any

import numpy as np

from trackside.report.downsample import spike_indices
from trackside.report.html import events
from trackside.report.html.charts import MAX_POINTS, Chart, View, line, numbers
from trackside.report.html.markup import code, missing
from trackside.report.html.section import Section, panel
from trackside.report.html.wording import time_unit
from trackside.report.step_time import StepTimeSummary, summarise_step_times
from trackside.runs import Run, StepTimes
from trackside.text import seconds

_MAX_MARKERS = 400
_MAX_BRIDGED = 5
"""So many intervals between two log rows the line goes across."""
_LOG_FACTOR = 20
"""Where the longest time is so many times the median, a linear axis would show nothing but that one."""


def build(run: Run) -> Section:
    """The section."""
    times = run.step_times
    if not len(times):
        text = "No step was timed. Rows of training carry a step time: log at least every few steps with "
        content = missing(text, code("LoggerConfig(log_every_n_steps=...)"), ".")
        return Section("step-time", "Step time", content)
    chart = _chart(run, times)
    content = panel("Time per step over the run", chart=chart, note=_note(times))
    return Section("step-time", "Step time", content, lead=_lead(times), charts=[chart])


def _lead(times: StepTimes) -> str:
    summary = summarise_step_times(times)
    if summary is None:
        return "All intervals hold warm-up, a compile, a capture, a validation or a checkpoint: none is undisturbed."
    return (
        f"Undisturbed steps take {seconds(summary.p50_s)} in the median: p95 {seconds(summary.p95_s)}, "
        f"p99 {seconds(summary.p99_s)}."
    )


def _note(times: StepTimes) -> str:
    summary = summarise_step_times(times)
    rows = f"One point is the mean of the steps between two log rows. {_left_out(summary)}" if summary else ""
    return f"{rows}Drag to zoom, double-click to go back; charts over the same steps follow each other."


def _left_out(summary: StepTimeSummary) -> str:
    names = {"compiling": "compilation", "warm_up": "warm-up", "disturbed": "a capture, validation or checkpoint"}
    listed = ", ".join(f"{number:,} with {names[reason]}" for reason, number in summary.left_out.items())
    return f"{summary.num_steps:,} steps were undisturbed; left out are {listed}. " if listed else ""


def _chart(run: Run, times: StepTimes) -> Chart:
    size, unit = time_unit(float(np.median(times.seconds)))
    traces = _time_traces(times, size, unit)
    lanes = events.lanes(run)
    rows = [title for title, _ in lanes.items() if lanes[title]]
    traces += [_lane_trace(title, lanes[title], len(rows) - 1 - row) for row, title in enumerate(rows)]
    share = min(0.09 * len(rows), 0.4)
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "step"}, "anchor": "y2" if rows else "y"},
        "yaxis": {"title": {"text": f"{unit} per step"}, "domain": [share + 0.06 if rows else 0, 1]},
        "hovermode": "closest",
    }
    if rows:
        layout["yaxis2"] = {
            "domain": [0, share],
            "range": [-0.6, len(rows) - 0.4],
            "tickvals": list(range(len(rows))),
            "ticktext": rows[::-1],
            "fixedrange": True,
            "zeroline": False,
        }
    linear = View("Linear", {"yaxis": {"type": "linear", "rangemode": "tozero"}})
    logarithmic = View("Logarithmic", {"yaxis": {"type": "log"}})
    is_wide = times.seconds.max() > _LOG_FACTOR * np.median(times.seconds)
    views = [logarithmic, linear] if is_wide else [linear, logarithmic]
    return Chart(
        "step-time-chart",
        "Step time over the steps of the run, with events below",
        traces,
        layout,
        views,
        follows_steps=True,
        size="large",
    )


def _time_traces(times: StepTimes, size: float, unit: str) -> list[dict[str, Any]]:
    scaled = times.seconds / size
    kinds = [
        ("warm-up", times.warm_up & ~times.compiling, "--muted"),
        ("with compilation", times.compiling, "--part-compile"),
        (
            "disturbed: capture, validation, checkpoint",
            times.disturbed & ~times.compiling & ~times.warm_up,
            "--series-3",
        ),
    ]
    hover = f"step %{{x}}: %{{y:.4g}} {unit}"
    steps, values = _with_breaks(times.step[times.clean], scaled[times.clean], float(np.median(times.num_steps)))
    kept = spike_indices(values, MAX_POINTS)
    hint = hover + "<extra></extra>"
    traces = [line(steps[kept], values[kept], "undisturbed", "--accent", hovertemplate=hint)]
    for name, mask, colour in kinds:
        indices = np.flatnonzero(mask)
        indices = indices[spike_indices(scaled[indices], _MAX_MARKERS)]
        if len(indices):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": numbers(times.step[indices]),
                    "y": numbers(scaled[indices]),
                    "name": name,
                    "marker": {"color": colour, "size": 6},
                    "hovertemplate": f"{hover}, {name}<extra></extra>",
                }
            )
    return traces if times.clean.any() else traces[1:]


def _with_breaks(steps: np.ndarray, values: np.ndarray, interval: float) -> tuple[np.ndarray, np.ndarray]:
    """The line with a gap wherever nothing was undisturbed for so long that a line across it would be made up."""
    breaks = np.flatnonzero(np.diff(steps) > _MAX_BRIDGED * interval) + 1
    return np.insert(steps, breaks, steps[breaks] - 1), np.insert(values, breaks, np.nan)


def _lane_trace(title: str, marks: list[events.Mark], row: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [mark.step for mark in marks],
        "y": [row] * len(marks),
        "yaxis": "y2",
        "text": [mark.text for mark in marks],
        "name": title,
        "showlegend": False,
        "marker": {"color": events.COLOURS[title], "size": 9, "symbol": events.SYMBOLS[title]},
        "hovertemplate": "%{text}<extra></extra>",
    }
