"""The step times of two runs in one chart: their distribution, and their course."""

from typing import Any

import numpy as np

from trackside.compare import Comparison
from trackside.compare.disturbance import StepSeries
from trackside.report.html.charts import LOG_AXIS, MAX_POINTS, Chart, View, as_interval_means, line, numbers, time_unit
from trackside.report.html.comparison.changes import AFTER_COLOUR, BEFORE_COLOUR
from trackside.report.html.comparison.values import run_labels
from trackside.report.html.markup import code, element, joined
from trackside.report.html.section import Section, panel
from trackside.runs.downsample import spike_indices
from trackside.text import chart_label, percent, seconds

_LOG_FACTOR = 20
"""Above this ratio of the longest time to the median, a linear axis would show only the longest."""
_MIN_BINS, _MAX_BINS = 10, 60
_TAIL = 0.02
"""The share of steps at either end of the distribution that is not drawn, where the tail is long."""

_MARGIN = 0.03


class _Curve:
    """The step times of a run as they are drawn: in the unit and per what the runs are compared by."""

    def __init__(self, name: str, colour: str, steps: StepSeries, undisturbed_s: float | None, per: str):
        batch_size = steps.batch_size if per == "example" and steps.batch_size else 1.0
        self.name = name
        self.colour = colour
        self.times = steps.seconds / batch_size
        self.weights = steps.num_steps.astype(float)
        self.undisturbed_s = undisturbed_s


def build(comparison: Comparison) -> Section:
    """The section."""
    time = comparison.step_time
    names = run_labels(comparison)
    sides = (
        (names[0], BEFORE_COLOUR, comparison.before.steps, time.before_s),
        (names[1], AFTER_COLOUR, comparison.after.steps, time.after_s),
    )
    curves = [_Curve(*side, time.per) for side in sides if len(side[2].seconds)]
    if not curves:
        text = "Neither run has a clean step time. Log every few steps with "
        hint = joined(text, code("LoggerConfig(log_every_n_steps=...)"), ".")
        return Section("step-time", "Step time", missing=[hint])
    size, unit = time_unit(float(np.median(np.concatenate([curve.times for curve in curves]))))
    distribution, beyond = _distribution(curves, size, f"{unit} per {time.per}")
    course = _course(curves, size, unit, time.per)
    spread_note = f"Dashed: an undisturbed {time.per}, by which the runs are compared." + (
        f" {beyond} of the steps are beyond the ends of the axis." if beyond else ""
    )
    course_note = f"Clean steps only, one after the other. Dashed: an undisturbed {time.per}."
    content = element(
        "div",
        panel("Distribution of step times", chart=distribution, note=spread_note),
        panel("Over the run", chart=course, note=course_note),
        class_="grid",
    )
    return Section("step-time", "Step time", content, lead=_lead(comparison), charts=[distribution, course])


def _lead(comparison: Comparison) -> str:
    time = comparison.step_time
    if time.median_before_s is None or time.median_after_s is None:
        return time.problem
    return (
        f"The median clean {time.per} takes {seconds(time.median_before_s)} before and "
        f"{seconds(time.median_after_s)} after, noise included."
    )


def _distribution(curves: list[_Curve], size: float, title: str) -> tuple[Chart, str]:
    """Histograms over the same bins, and the share of steps that they leave out."""
    pooled = np.concatenate([curve.times for curve in curves])
    weights = np.concatenate([curve.weights for curve in curves])
    low, high = _shown_range(curves, pooled)
    num_bins = int(np.clip(2 * np.sqrt(min(len(curve.times) for curve in curves)), _MIN_BINS, _MAX_BINS))
    edges = np.linspace(low, high, num_bins + 1)
    traces, top = [], 0.0
    for curve in curves:
        counts, _ = np.histogram(curve.times, edges, weights=curve.weights)
        shares = 100 * counts / curve.weights.sum()
        top = max(top, float(shares.max()))
        traces.append(_steps_trace(edges / size, shares, curve, title))
    traces += [
        _level_trace([curve.undisturbed_s / size] * 2, [0.0, 1.05 * top], curve)
        for curve in curves
        if curve.undisturbed_s is not None
    ]
    layout = {
        "xaxis": {"title": {"text": title}},
        "yaxis": {"title": {"text": "share of the run's steps"}, "ticksuffix": " %", "rangemode": "tozero"},
        "hovermode": "closest",
    }
    description = "Histograms of the step times of both runs"
    is_beyond = (pooled < low) | (pooled > high)
    beyond = percent(float(weights[is_beyond].sum() / weights.sum())) if is_beyond.any() else ""
    return Chart("spread-chart", description, traces, layout), beyond


def _shown_range(curves: list[_Curve], pooled: np.ndarray) -> tuple[float, float]:
    """The range of nearly all steps; a long tail would leave no room for them."""
    low = min(float(np.quantile(curve.times, _TAIL)) for curve in curves)
    high = max(float(np.quantile(curve.times, 1 - _TAIL)) for curve in curves)
    undisturbed = [curve.undisturbed_s for curve in curves if curve.undisturbed_s is not None]
    low = min([low, *undisturbed])
    high = max([min(high, 3.0 * max(float(np.median(curve.times)) for curve in curves)), *undisturbed])
    if high <= low:
        return 0.5 * float(pooled.min()), 1.5 * float(pooled.max()) + 1e-12
    margin = _MARGIN * (high - low)
    return max(low - margin, 0.0), high + margin


def _steps_trace(edges: np.ndarray, shares: np.ndarray, curve: _Curve, title: str) -> dict[str, Any]:
    """A histogram as an outline that is filled; bars of two runs would hide each other."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": numbers(np.repeat(edges, 2)),
        "y": numbers(np.concatenate([[0.0], np.repeat(shares, 2), [0.0]])),
        "name": chart_label(curve.name),
        "fill": "tozeroy",
        "line": {"color": curve.colour, "width": 1.6},
        "marker": {"color": curve.colour},
        "hovertemplate": f"%{{x:.4g}} {title}: %{{y:.1f}} %<extra>%{{fullData.name}}</extra>",
    }


def _level_trace(x: list[float], y: list[float], curve: _Curve) -> dict[str, Any]:
    """A dashed line at the undisturbed step time. It has the name of its run, and is hidden together with it."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": numbers(x),
        "y": numbers(y),
        "name": chart_label(curve.name),
        "showlegend": False,
        "line": {"color": curve.colour, "width": 1.6, "dash": "dash"},
        "marker": {"color": curve.colour},
        "hovertemplate": f"undisturbed: {seconds(curve.undisturbed_s or 0.0)}<extra>%{{fullData.name}}</extra>",
    }


def _course(curves: list[_Curve], size: float, unit: str, per: str) -> Chart:
    traces = []
    for curve in curves:
        steps = np.cumsum(curve.weights)
        kept = spike_indices(curve.times, MAX_POINTS)
        hover = f"clean step %{{x:,.0f}}: %{{y:.4g}} {unit}<extra>%{{fullData.name}}</extra>"
        ends, means = np.insert(steps[kept], 0, 0.0), np.insert(curve.times[kept], 0, curve.times[0]) / size
        more = {"hovertemplate": hover, "opacity": 0.8, "mode": "lines"}
        traces.append(as_interval_means(line(ends, means, curve.name, curve.colour, **more)))
        if curve.undisturbed_s is not None:
            traces.append(_level_trace([0.0, float(steps[-1])], [curve.undisturbed_s / size] * 2, curve))
    layout = {
        "xaxis": {"title": {"text": "clean steps"}},
        "yaxis": {"title": {"text": f"{unit} per {per}"}},
        "hovermode": "closest",
    }
    linear = View("Linear", {"yaxis": {"type": "linear", "rangemode": "tozero"}})
    logarithmic = View("Logarithmic", {"yaxis": LOG_AXIS})
    is_wide = any(curve.times.max() > _LOG_FACTOR * np.median(curve.times) for curve in curves)
    views = [logarithmic, linear] if is_wide else [linear, logarithmic]
    return Chart("course-chart", "The step times of both runs over their clean steps", traces, layout, views)
