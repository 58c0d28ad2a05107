"""Losses and metrics: one chart for the training and validation of a metric, and a table of all values."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trackside.report.best_metric import BestMetric, direction_of
from trackside.report.downsample import spike_indices, without_absent
from trackside.report.html.charts import (
    Chart,
    View,
    as_interval_means,
    line,
    numbers,
    option_buttons,
    series_colour,
    view_buttons,
)
from trackside.report.html.markup import Cell, Child, Column, Html, code, element, missing, table
from trackside.report.html.section import Section, panel
from trackside.runs import MetricTable
from trackside.text import count, four_digits

MAX_CHARTS = 200
"""The table below the charts has all metrics."""
_MAX_ALL_POINTS = 80_000
"""Over all charts together, which keeps the page small however many metrics there are."""
_MAX_POINTS, _MIN_POINTS = 1200, 150
_NUM_FILTERED = 7
_NUM_UNFOLDED = 6
_MAX_TABLE_ROWS = 1000

_OWN_MODES = frozenset({"time", "profile", "memory"})
"""Modes that have their own sections."""
_NOT_METRICS = frozenset({"epoch", "step_time", "epoch_time", "train_time"})
_SUFFIXES = ("_mean", "_single", "_max")
"""Log modes on the scale of the metric itself; its deviation gets another chart."""
_INTERVAL_SUFFIXES = ("_mean", "_max", "_std")
"""Log modes whose value is over all steps since the row before."""
_MODE_COLOURS = {"train": "--series-0", "val": "--series-3", "test": "--series-2", "train_epoch": "--series-4"}

Curve = tuple[str, str]
"""A mode and the name of a metric in it."""
_Drawn = tuple[dict[str, Any], list[float | int | None]]
"""A trace, and its x values as time since the start."""


def build(metrics: Mapping[str, MetricTable], best: BestMetric | None, started_at: float) -> Section:
    """The section.

    Args:
        metrics: The metrics by mode.
        best: `RunSummary.best`.
        started_at: When the run started.
    """
    groups = _grouped(metrics)
    if not groups:
        how = code("LoggerConfig(log_every_n_steps=...)")
        text = missing("No metric was logged. Return metrics from the loss function; ", how, " sets how often to log.")
        return Section("metrics", "Losses and metrics", text)
    charts = _charts(_Curves(metrics, best, started_at), groups)
    shown = [
        element(
            "div", panel(base, chart=chart, note=_gap_note(metrics, groups[base]), has_buttons=False), data_metric=base
        )
        for base, chart in charts.items()
    ]
    content: list[Child] = [
        _toolbar([chart.id for chart in charts.values()], len(groups)),
        element("div", shown[:_NUM_UNFOLDED], class_="grid"),
        _folded(shown[_NUM_UNFOLDED:]),
        _left_out(len(groups), len(charts)),
        element("details", element("summary", "All metrics: last, lowest and highest"), _value_table(metrics)),
    ]
    return Section("metrics", "Losses and metrics", content, charts=list(charts.values()))


def _toolbar(chart_ids: list[str], num_metrics: int) -> Html:
    return element(
        "div",
        _filter(num_metrics),
        option_buttons(chart_ids, "smoothing", {"0": "As logged", "0.9": "Smoothed"}),
        option_buttons(chart_ids, "axis", {"step": "Steps", "elapsed": "Time"}),
        view_buttons(chart_ids, ["Linear", "Logarithmic"]),
        class_="toolbar",
    )


def _folded(panels: list[Html]) -> Html | None:
    if not panels:
        return None
    summary = element("summary", count(len(panels), "more metric"))
    return element("details", summary, element("div", panels, class_="grid"), class_="more-metrics")


def _grouped(metrics: Mapping[str, MetricTable]) -> dict[str, list[Curve]]:
    """Curves by metric; losses first, norms last."""
    groups: dict[str, list[Curve]] = {}
    for mode, rows in metrics.items():
        if mode in _OWN_MODES:
            continue
        for name in rows.names:
            if name not in _NOT_METRICS and np.isfinite(rows[name]).any():
                groups.setdefault(_base(name), []).append((mode, name))
    for curves in groups.values():
        modes = {mode for mode, _ in curves}
        if "train" in modes:  # the same values again, an epoch at a time
            curves[:] = [curve for curve in curves if curve[0] != "train_epoch"]
    return dict(sorted(groups.items(), key=lambda item: _rank(item[0])))


def _base(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)


def _rank(base: str) -> tuple[bool, bool, bool]:
    """What people look at first comes first; otherwise the order in which it was logged."""
    return base != "loss", "loss" not in base, base.startswith(("grad_norm", "param_norm"))


def _charts(curves: "_Curves", groups: Mapping[str, list[Curve]]) -> dict[str, Chart]:
    drawn = dict(list(groups.items())[:MAX_CHARTS])
    num_curves = sum(map(len, drawn.values()))
    num_points = min(max(_MAX_ALL_POINTS // max(num_curves, 1), _MIN_POINTS), _MAX_POINTS)
    return {
        base: curves.chart(f"metric-{index}", base, own, num_points) for index, (base, own) in enumerate(drawn.items())
    }


class _Curves:
    """Draws curves of metrics.

    Args:
        metrics: The metrics by mode.
        best: The best value of the metric by which the run is judged.
        started_at: When the run started.
    """

    def __init__(self, metrics: Mapping[str, MetricTable], best: BestMetric | None, started_at: float):
        self._metrics = metrics
        self._best = best
        self._started_at = started_at
        longest_s = max((float(rows.t[-1]) - started_at for rows in metrics.values() if len(rows)), default=0.0)
        units = ((7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
        self._unit_s, self._unit = next((size, name) for least, size, name in units if longest_s >= least)

    def chart(self, identifier: str, base: str, curves: list[Curve], num_points: int) -> Chart:
        """The curves of one metric in one chart."""
        drawn = [self._line(base, curves, index, num_points) for index in range(len(curves))]
        smoothable = [index for index, (mode, _) in enumerate(curves) if mode == "train"]
        if (star := self._star(curves)) is not None:
            drawn.append(star)
        return Chart(
            identifier,
            f"{base} over the steps",
            [trace for trace, _ in drawn],
            {"xaxis": {"title": {"text": "step"}}, "hovermode": "x unified"},
            [View("Linear"), View("Logarithmic", {"yaxis": {"type": "log"}})],
            size="small",
            elapsed=[elapsed for _, elapsed in drawn],
            elapsed_title=f"{self._unit} since the start",
            smoothable=smoothable,
        )

    def _line(self, base: str, curves: list[Curve], index: int, num_points: int) -> _Drawn:
        mode, name = curves[index]
        rows = self._metrics[mode]
        present = without_absent(rows[name])
        kept = present[spike_indices(rows[name][present], num_points)]
        repeats = sum(other == mode for other, _ in curves[:index])
        colour = series_colour(index + 4) if repeats else _MODE_COLOURS.get(mode, series_colour(index + 4))
        hover = "%{y:.5g}<extra>%{fullData.name}</extra>"
        title = _curve_title(mode, name, base)
        trace = line(rows.step[kept], rows[name][kept], title, colour, hovertemplate=hover)
        if mode == "test":
            trace["mode"] = "markers"
        elif mode == "train_epoch" or (mode == "train" and name.endswith(_INTERVAL_SUFFIXES)):
            trace = as_interval_means(trace)
        return trace, self._elapsed(rows, kept)

    def _star(self, curves: list[Curve]) -> _Drawn | None:
        """A star at the best value: of the judged metric, or else of the validation; None without either."""
        judged = None if self._best is None else (self._best.mode, self._best.name)
        chosen = judged if judged in curves else next((curve for curve in curves if curve[0].startswith("val")), None)
        if chosen is None:
            return None
        mode, name = chosen
        direction = self._best.direction if self._best is not None and chosen == judged else direction_of(name)
        rows = self._metrics[mode]
        values = np.where(np.isfinite(rows[name]), rows[name], np.nan)
        at = np.array([np.nanargmin(values) if direction == "min" else np.nanargmax(values)])
        hover = "best: %{y:.5g} at step " + f"{rows.step[at[0]]:,}<extra></extra>"
        trace = line(rows.step[at], values[at], f"best {mode}", "--text", mode="markers", hovertemplate=hover)
        return {**trace, "marker": {"color": "--text", "size": 10, "symbol": "star"}}, self._elapsed(rows, at)

    def _elapsed(self, rows: MetricTable, kept: np.ndarray) -> list[float | int | None]:
        return numbers((rows.t[kept] - self._started_at) / self._unit_s)


def _curve_title(mode: str, name: str, base: str) -> str:
    suffix = name.removeprefix(base).strip("_")
    return f"{mode} {suffix}" if suffix not in ("", "mean") else mode


def _gap_note(metrics: Mapping[str, MetricTable], curves: list[Curve]) -> str | None:
    notes = []
    for mode, name in curves:
        rows = metrics[mode]
        present = without_absent(rows[name])
        bad = present[~np.isfinite(rows[name][present])]
        if len(bad):
            first = rows.step[bad[0]]
            notes.append(f"{mode}: no finite value in {count(len(bad), 'row')}, first at step {first:,}")
    return "; ".join(notes) + "." if notes else None


def _filter(num_charts: int) -> Html | None:
    if num_charts < _NUM_FILTERED:
        return None
    return element(
        "input",
        type="search",
        placeholder=f"Filter {num_charts} metrics",
        class_="filter",
        aria_label="Filter metrics by name",
        data_filter="metric",
    )


def _left_out(num_metrics: int, num_charts: int) -> Html | None:
    if num_charts == num_metrics:
        return None
    text = f"The first {num_charts} of {num_metrics:,} metrics are drawn; the table has all of them, and "
    return element("p", text, code("trackside export"), " writes them to a file.", class_="note")


def _value_table(metrics: Mapping[str, MetricTable]) -> Html:
    columns = [
        Column("metric", is_code=True),
        Column("mode"),
        Column("last", is_number=True),
        Column("lowest", is_number=True),
        Column("at step", is_number=True, is_minor=True),
        Column("highest", is_number=True),
        Column("at step", is_number=True, is_minor=True),
        Column("values", is_number=True, is_minor=True),
    ]
    names = [(mode, name) for mode, rows in metrics.items() if mode not in _OWN_MODES for name in rows.names]
    cells = [_value_row(metrics[mode], mode, name) for mode, name in names if name != "epoch"]
    shown = table(columns, [row for row in cells if row][:_MAX_TABLE_ROWS], "All metrics")
    if len(cells) <= _MAX_TABLE_ROWS:
        return shown
    return element("div", shown, element("p", f"The first {_MAX_TABLE_ROWS:,} of {len(cells):,}.", class_="note"))


def _value_row(rows: MetricTable, mode: str, name: str) -> list[Child | Cell] | None:
    finite = np.flatnonzero(np.isfinite(rows[name]))
    if not len(finite):
        return None
    values, steps = rows[name][finite], rows.step[finite]
    low, high = int(values.argmin()), int(values.argmax())
    return [
        name,
        mode,
        _number_cell(values[-1]),
        _number_cell(values[low]),
        Cell(f"{steps[low]:,}", int(steps[low])),
        _number_cell(values[high]),
        Cell(f"{steps[high]:,}", int(steps[high])),
        Cell(f"{len(values):,}", len(values)),
    ]


def _number_cell(value: float) -> Cell:
    return Cell(four_digits(float(value)), float(value))
