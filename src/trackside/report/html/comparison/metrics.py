"""Losses and metrics of two runs: their curves in one chart each, and their values at equal steps and times."""

from collections.abc import Iterator, Sequence

import numpy as np

from trackside.compare import Comparison, MetricChange, MetricPair, MetricValue
from trackside.compare.sides import Side
from trackside.report.html.charts import Chart
from trackside.report.html.comparison.changes import AFTER_COLOUR, BEFORE_COLOUR
from trackside.report.html.comparison.values import signed_percent
from trackside.report.html.markup import Cell, Child, Column, Html, code, element, joined, table, term
from trackside.report.html.metric_lines import MetricLine, metric_chart, metric_line, metric_toolbar
from trackside.report.html.section import Section, panel
from trackside.runs.best_metric import is_result
from trackside.runs.metric_curves import Curve, curves_by_metric
from trackside.text import count, duration, four_digits

_MAX_CHARTS = 12
_MAX_POINTS = 800
_MAX_METRICS = 40
_NUM_UNFOLDED = 3
_WIDTHS = {True: 1.6, False: 2.4}
_FIRST_WIDER = 1.6
_MARKER_SIZE = 5
_PILLS = {"after": ("better", "good"), "before": ("worse", "bad")}
_LOWER_AND_HIGHER = {"min": "lower is better", "max": "higher is better"}


def build(comparison: Comparison) -> Section:
    """The section."""
    title = "Losses and metrics"
    if not comparison.metrics:
        text = "Captures do not record them; compare the runs."
        if comparison.before.kind == "run":
            text = "Neither run logged any."
        return Section("metrics", title, missing=[joined(text)])
    charts = _charts(comparison)
    panels = [panel(base, chart=chart, has_buttons=False) for base, chart in charts.items()]
    content: list[Child] = []
    if charts:
        content += [metric_toolbar(list(charts.values())), element("div", panels, class_="grid")]
    content.append(panel("Values", _value_tables(comparison.metrics), note=_note(comparison)))
    return Section("metrics", title, content, lead=_lead(comparison.metrics[0]), charts=list(charts.values()))


def _lead(change: MetricChange) -> str:
    best = change.best
    if best.before is None or best.after is None:
        missing = "first" if best.before is None else "second"
        return f"The {missing} run has no finite {change.label}."
    text = (
        f"The best {change.label} is {_value(best.before)} before and {_value(best.after)} after "
        f"({_LOWER_AND_HIGHER[change.direction]})."
    )
    first, second = change.reached.before, change.reached.after
    if first is None or second is None or change.reached_value is None:
        return text
    times = f"{duration(first.time_s)} before and {duration(second.time_s)} after"
    return f"{text} The runs reached {four_digits(change.reached_value)} in {times}."


def _charts(comparison: Comparison) -> dict[str, Chart]:
    """The curves of both runs by metric. What says nothing about the model is left to the reports of the runs."""
    sides = (("before", comparison.before, BEFORE_COLOUR), ("after", comparison.after, AFTER_COLOUR))
    groups = [curves_by_metric(side.metrics) for _, side, _ in sides]
    bases = [base for base in dict.fromkeys((*groups[0], *groups[1])) if is_result(base) and not base.endswith("_std")]
    longest_s = max(_longest_s(side) for _, side, _ in sides)
    charts = {}
    for index, base in enumerate(bases[:_MAX_CHARTS]):
        lines = [
            _line(side, curve, f"{which}: {curve.title}", colour)
            for (which, side, colour), own in zip(sides, groups, strict=True)
            for curve in own.get(base, [])
        ]
        charts[base] = metric_chart(f"metric-{index}", base, lines, longest_s)
    return charts


def _line(side: Side, curve: Curve, name: str, colour: str) -> MetricLine:
    """Training is pale, so that validations can be seen in front of it.

    Curves of the first run are wider: where both runs have the same values, it can be seen behind the second.
    """
    drawn = metric_line(side.metrics[curve.mode], curve, side.axes, name, colour, _MAX_POINTS)
    is_train, is_first = curve.stage == "train", colour == BEFORE_COLOUR
    width = _WIDTHS[is_train] * (_FIRST_WIDER if is_first else 1.0)
    drawn.trace["line"] = {**drawn.trace["line"], "width": width}
    drawn.trace["marker"] = {**drawn.trace["marker"], "size": _MARKER_SIZE * (_FIRST_WIDER if is_first else 1.0)}
    if is_train:
        drawn.trace["opacity"] = 0.55
    return drawn


def _longest_s(side: Side) -> float:
    ends = [float(rows.t[-1]) for rows in side.metrics.values() if len(rows)]
    return float(side.axes.elapsed_s(np.array([max(ends)]))[0]) if ends else 0.0


def _value_tables(changes: Sequence[MetricChange]) -> list[Html]:
    """The values of the first metrics, and those of the others folded away."""
    first, others = changes[:_NUM_UNFOLDED], changes[_NUM_UNFOLDED:_MAX_METRICS]
    tables = [_value_table(first, "Losses and metrics of both runs")]
    if others:
        summary = element("summary", count(len(others), "more metric"))
        tables.append(element("details", summary, _value_table(others, "More metrics of both runs")))
    return tables


def _value_table(changes: Sequence[MetricChange], caption: str) -> Html:
    columns = [
        Column("metric", is_long=True),
        Column("before", is_number=True),
        Column("at step", is_number=True, is_minor=True),
        Column("after", is_number=True),
        Column("at step", is_number=True, is_minor=True),
        Column("change", is_number=True, is_minor=True, explanation="As a share of the first run's value."),
        Column("", is_minor=True),
    ]
    return table(columns, [row for change in changes for row in _rows(change)], caption)


def _rows(change: MetricChange) -> Iterator[list[Child | Cell]]:
    for title, pair in change.titled_pairs():
        values = [*_value_cells(pair.before), *_value_cells(pair.after)]
        yield [_name_cell(change, title), *values, *_change_cells(change, pair)]
    first, second, relative = change.reached.before, change.reached.after, change.reach_time_change
    if first is not None and second is not None and relative is not None and change.reached_value is not None:
        times = [Cell(duration(one.time_s), one.time_s) for one in (first, second)]
        steps = [Cell(f"{one.step:,}", one.step) for one in (first, second)]
        name = _name_cell(change, f"time to {four_digits(change.reached_value)}")
        yield [name, times[0], steps[0], times[1], steps[1], Cell(signed_percent(relative), relative), ""]


def _name_cell(change: MetricChange, title: str) -> Cell:
    return Cell(joined(code(change.label), " ", element("span", title, class_="soft")), f"{change.label} {title}")


def _value_cells(one: MetricValue | None) -> list[Cell]:
    if one is None:
        return [Cell("none", ""), Cell("", "")]
    return [Cell(_value(one), "" if one.value is None else one.value), Cell(f"{one.step:,}", one.step)]


def _value(one: MetricValue) -> str:
    return "not finite" if one.value is None else four_digits(one.value)


def _change_cells(change: MetricChange, pair: MetricPair) -> list[Cell]:
    relative = pair.relative_change
    shown = Cell("" if relative is None else signed_percent(relative), "" if relative is None else relative)
    word, pill = _PILLS.get(str(pair.better(change.direction)), ("", ""))
    if not word:
        return [shown, Cell("")]
    explanation = f"For {change.label}, {_LOWER_AND_HIGHER[change.direction]}."
    return [shown, Cell(element("span", term(word, explanation), class_=f"status {pill}"), word)]


def _note(comparison: Comparison) -> str:
    notes = [
        "By a step or within a time, each run has the last value that it logged until then; nothing is interpolated.",
        "Time is since the start, not counting pauses between legs.",
    ]
    num_steps = max(one.num_mean_steps or 1 for one in comparison.metrics)
    if num_steps > 1:
        notes.append(f"Values of training are means over {num_steps:,} steps in both runs.")
    notes.append("One run of each does not show how much they would differ by chance.")
    if len(comparison.metrics) > _MAX_METRICS:
        notes.append(f"The first {_MAX_METRICS} of {len(comparison.metrics):,}; trackside compare --json has all.")
    return " ".join(notes)
