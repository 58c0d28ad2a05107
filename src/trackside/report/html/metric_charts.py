"""Losses and metrics: one chart for the training and validation of a metric, and a table of all values."""

from collections.abc import Mapping

import numpy as np

from trackside.monitor import direction_of
from trackside.report.html.charts import Chart, line, series_colour
from trackside.report.html.markup import Cell, Child, Column, Html, code, element, joined, table
from trackside.report.html.metric_lines import MetricLine, metric_chart, metric_line, metric_toolbar
from trackside.report.html.section import Section, panel
from trackside.runs import MetricTable
from trackside.runs.best_metric import BestMetric, Monitored, best_of, is_result
from trackside.runs.metric_curves import OWN_MODES, Curve, curves_by_metric
from trackside.runs.run_axes import RunAxes
from trackside.text import count, four_digits

MAX_CHARTS = 200
"""The table below the charts has all metrics."""
_MAX_ALL_POINTS = 80_000
"""Over all charts together, which keeps the page small however many metrics there are."""
_MAX_POINTS, _MIN_POINTS = 1200, 150
_NUM_FILTERED = 7
_NUM_UNFOLDED = 6
_MAX_TABLE_ROWS = 1000

_MODE_COLOURS = {"train": "--series-0", "val": "--series-3", "test": "--series-2", "train_epoch": "--series-4"}


def build(metrics: Mapping[str, MetricTable], best: BestMetric | None, axes: RunAxes) -> Section:
    """The section.

    Args:
        metrics: The metrics by mode.
        best: `RunSummary.best`.
        axes: `Run.axes`.
    """
    groups = curves_by_metric(metrics)
    if not groups:
        how = code("LoggerConfig(log_every_n_steps=...)")
        hint = joined("No metric was logged. Return metrics from the loss function; ", how, " sets how often to log.")
        return Section("metrics", "Losses and metrics", missing=[hint])
    charts = _charts(_Curves(metrics, best, axes), groups)
    shown = [
        element(
            "div", panel(base, chart=chart, note=_gap_note(metrics, groups[base]), has_buttons=False), data_metric=base
        )
        for base, chart in charts.items()
    ]
    content: list[Child] = [
        metric_toolbar(list(charts.values()), _filter(len(groups))),
        element("div", shown[:_NUM_UNFOLDED], class_="grid"),
        _folded(shown[_NUM_UNFOLDED:]),
        _left_out(len(groups), len(charts)),
        element("details", element("summary", "All metrics: last, lowest and highest"), _value_table(metrics)),
    ]
    return Section("metrics", "Losses and metrics", content, charts=list(charts.values()))


def _folded(panels: list[Html]) -> Html | None:
    if not panels:
        return None
    summary = element("summary", count(len(panels), "more metric"))
    return element("details", summary, element("div", panels, class_="grid"), class_="more-metrics")


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
        axes: What they can be drawn over.
    """

    def __init__(self, metrics: Mapping[str, MetricTable], best: BestMetric | None, axes: RunAxes):
        self._metrics = metrics
        self._best = best
        self._axes = axes
        ends = (float(axes.elapsed_s(rows.t[-1:])[0]) for rows in metrics.values() if len(rows))
        self._longest_s = max(ends, default=0.0)

    def chart(self, identifier: str, base: str, curves: list[Curve], num_points: int) -> Chart:
        """The curves of one metric in one chart."""
        lines = [self._line(curves, index, num_points) for index in range(len(curves))]
        if (star := self._star(curves)) is not None:
            lines.append(star)
        return metric_chart(identifier, base, lines, self._longest_s)

    def _line(self, curves: list[Curve], index: int, num_points: int) -> MetricLine:
        curve = curves[index]
        repeats = sum(other.mode == curve.mode for other in curves[:index])
        colour = series_colour(index + 4) if repeats else _MODE_COLOURS.get(curve.mode, series_colour(index + 4))
        return metric_line(self._metrics[curve.mode], curve, self._axes, curve.title, colour, num_points)

    def _star(self, curves: list[Curve]) -> MetricLine | None:
        """A star at the best value: of the judged metric, or else of the validation; None without either."""
        best = self._best
        judged = next((one for one in curves if best and (one.mode, one.name) == (best.mode, best.name)), None)
        chosen = judged or next((one for one in curves if one.mode.startswith("val") and is_result(one.base)), None)
        if chosen is None:
            return None
        direction = best.direction if best is not None and judged is not None else direction_of(chosen.name)
        rows = self._metrics[chosen.mode]
        marked = best_of(Monitored(chosen.mode, chosen.name, direction), rows.step, rows[chosen.name])
        if marked is None:
            return None
        at = np.flatnonzero(rows.step == marked.step)[:1]
        hover = "best: %{y:.5g} at step " + f"{marked.step:,}<extra></extra>"
        title = f"best {chosen.title}: {four_digits(marked.value)}"
        trace = line(rows.step[at], [marked.value], title, "--text", hovertemplate=hover)
        star = {"mode": "markers", "marker": {"color": "--text", "size": 10, "symbol": "star"}}
        return MetricLine({**trace, **star}, rows.step[at], rows.t[at], self._axes)


def _gap_note(metrics: Mapping[str, MetricTable], curves: list[Curve]) -> str | None:
    notes = []
    for curve in curves:
        rows = metrics[curve.mode]
        present = rows.present(curve.name)
        bad = present[~np.isfinite(rows[curve.name][present])]
        if len(bad):
            first = rows.step[bad[0]]
            notes.append(f"{curve.title}: no finite value in {count(len(bad), 'row')}, first at step {first:,}")
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
    names = [(mode, name) for mode, rows in metrics.items() if mode not in OWN_MODES for name in rows.names]
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
