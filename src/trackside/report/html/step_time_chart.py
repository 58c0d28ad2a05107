"""Step time over the run, with the events of the run below it."""

from typing import Any

import numpy as np

from trackside.report.html import event_lanes
from trackside.report.html.charts import LOG_AXIS, MAX_POINTS, Chart, View, as_interval_means, line, numbers, time_unit
from trackside.report.html.markup import code, joined
from trackside.report.html.section import Section, panel
from trackside.report.run_summary import RunSummary
from trackside.report.step_time_summary import StepTimeSummary
from trackside.runs import Run, StepTimes
from trackside.runs.downsample import spike_indices
from trackside.runs.step_time_levels import clean_levels
from trackside.text import seconds

_MAX_MARKERS = 400
_REASONS = {
    "compiling": "with compilation",
    "warm_up": "in warm-up",
    "disturbed": "with a capture, validation or checkpoint",
    "not_timed": "not timed",
}
_LOG_FACTOR = 20
"""Above this ratio of the longest time to the median, a linear axis would show only the longest."""


def build(summary: RunSummary, run: Run) -> Section:
    """The section.

    Args:
        summary: The summary of the run, for the figures.
        run: The run, for the step times and events over time.
    """
    times = run.step_times
    if not len(times):
        text = "No step was timed. Log rows carry the step time; log every few steps with "
        hint = joined(text, code("LoggerConfig(log_every_n_steps=...)"), ".")
        return Section("step-time", "Step time", missing=[hint])
    chart = _chart(run, times)
    content = panel("Time per step over the run", chart=chart, note=_note(summary.step_time))
    return Section("step-time", "Step time", content, lead=_lead(summary.step_time), charts=[chart])


def _lead(times: StepTimeSummary | None) -> str:
    if times is None:
        return "Every interval contains warm-up, a compile, a capture, a validation or a checkpoint."
    return (
        f"The median clean step takes {seconds(times.p50_s)} (p95 {seconds(times.p95_s)}, p99 {seconds(times.p99_s)})."
    )


def _note(times: StepTimeSummary | None) -> str:
    rows = f"Each value is the mean of the steps between two log rows. {_left_out(times)}" if times else ""
    return f"{rows}Drag to zoom, double-click to reset; charts over the same steps zoom together."


def _left_out(times: StepTimeSummary) -> str:
    listed = ", ".join(f"{number:,} {_REASONS.get(reason, reason)}" for reason, number in times.left_out.items())
    return f"{times.num_steps:,} steps were clean; left out: {listed}. " if listed else ""


def _chart(run: Run, times: StepTimes) -> Chart:
    size, unit = time_unit(float(np.median(times.seconds)))
    traces = _time_traces(times, size, unit)
    lanes = event_lanes.lanes(run)
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
    logarithmic = View("Logarithmic", {"yaxis": LOG_AXIS})
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
    steps, levels_s = clean_levels(times)
    values = levels_s / size
    kept = spike_indices(values, MAX_POINTS)
    hint = hover + "<extra></extra>"
    clean = line(steps[kept], values[kept], "clean", "--accent", hovertemplate=hint)
    traces = [as_interval_means({**clean, "mode": "lines"})]
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


def _lane_trace(title: str, marks: list[event_lanes.Mark], row: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [mark.step for mark in marks],
        "y": [row] * len(marks),
        "yaxis": "y2",
        "text": [mark.text for mark in marks],
        "name": title,
        "showlegend": False,
        "marker": {"color": event_lanes.COLOURS[title], "size": 9, "symbol": event_lanes.SYMBOLS[title]},
        "hovertemplate": "%{text}<extra></extra>",
    }
