"""Losses and metrics: one chart for the training and validation of a metric, and a table of all values."""

from collections.abc import Mapping

import numpy as np

from trackside.report.downsample import spike_indices, without_absent
from trackside.report.html.charts import Chart, View, line, series_colour, view_buttons
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
_MAX_TABLE_ROWS = 1000

_OWN_MODES = frozenset({"time", "profile", "memory"})
"""Modes that have their own sections."""
_NOT_METRICS = frozenset({"epoch", "step_time", "epoch_time", "train_time"})
_SUFFIXES = ("_mean", "_single", "_max")
"""Log modes on the scale of the metric itself; its deviation gets another chart."""
_MODE_COLOURS = {"train": "--series-0", "val": "--series-3", "test": "--series-2", "train_epoch": "--series-4"}

Curve = tuple[str, str]
"""A mode and the name of a metric in it."""


def build(metrics: Mapping[str, MetricTable]) -> Section:
    """The section.

    Args:
        metrics: The metrics by mode.
    """
    groups = _grouped(metrics)
    if not groups:
        how = code("LoggerConfig(log_every_n_steps=...)")
        text = missing(
            "No metric was logged. Return metrics from the loss function; ", how, " sets how often they are logged."
        )
        return Section("metrics", "Losses and metrics", text)
    charts = _charts(metrics, groups)
    shown = [
        element("div", _panel(metrics, base, groups[base], chart), data_metric=base) for base, chart in charts.items()
    ]
    content: list[Child] = [
        element(
            "div",
            _filter(len(groups)),
            view_buttons([c.id for c in charts.values()], ["Linear", "Logarithmic"]),
            class_="toolbar",
        ),
        element("div", shown, class_="grid"),
        _left_out(len(groups), len(charts)),
        element("details", element("summary", "All metrics: last, lowest and highest"), _value_table(metrics)),
    ]
    return Section("metrics", "Losses and metrics", content, charts=list(charts.values()))


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


def _panel(metrics: Mapping[str, MetricTable], base: str, curves: list[Curve], chart: Chart) -> Html:
    return panel(base, chart=chart, note=_gap_note(metrics, curves), has_buttons=False)


def _charts(metrics: Mapping[str, MetricTable], groups: Mapping[str, list[Curve]]) -> dict[str, Chart]:
    drawn = dict(list(groups.items())[:MAX_CHARTS])
    num_curves = sum(map(len, drawn.values()))
    num_points = min(max(_MAX_ALL_POINTS // max(num_curves, 1), _MIN_POINTS), _MAX_POINTS)
    return {
        base: _chart(f"metric-{index}", base, metrics, curves, num_points)
        for index, (base, curves) in enumerate(drawn.items())
    }


def _chart(
    identifier: str, base: str, metrics: Mapping[str, MetricTable], curves: list[Curve], num_points: int
) -> Chart:
    traces = []
    for index, (mode, name) in enumerate(curves):
        rows = metrics[mode]
        present = without_absent(rows[name])
        kept = present[spike_indices(rows[name][present], num_points)]
        title = _curve_title(mode, name, base)
        repeats = sum(other == mode for other, _ in curves[:index])
        colour = series_colour(index + 4) if repeats else _MODE_COLOURS.get(mode, series_colour(index + 4))
        hover = "%{y:.5g}<extra>%{fullData.name}</extra>"
        trace = line(rows.step[kept], rows[name][kept], title, colour, hovertemplate=hover)
        traces.append({**trace, "mode": "markers"} if mode == "test" else trace)
    layout = {"xaxis": {"title": {"text": "step"}}, "hovermode": "x unified"}
    views = [View("Linear"), View("Logarithmic", {"yaxis": {"type": "log"}})]
    return Chart(identifier, f"{base} over the steps", traces, layout, views, size="small")


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
