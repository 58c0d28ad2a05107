"""Where the wall time went, in total and over the run."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from trackside.profiling.ledger import CALLBACK, PARTS, STEP_PARTS, LedgerTotals
from trackside.profiling.ledger_text import part_name
from trackside.report.downsample import bucket_means, bucket_starts, spike_indices
from trackside.report.html.charts import Chart, View, area, as_interval_means, part_class, part_colour
from trackside.report.html.markup import Cell, Column, Html, missing, share_bar, table, term
from trackside.report.html.section import Section, panel
from trackside.report.run_summary import RunSummary
from trackside.runs import MetricTable
from trackside.text import percent, seconds, three_digits

_MAX_BUCKETS = 400
_MIN_SHARE = 0.0005
_MAX_MEDIANS = 5
"""Intervals beyond this many times the median are cut off at the top of the axis."""

EXPLANATIONS = {
    "data_wait": "The loop waits for the loader to produce the next batch.",
    "host_to_device": "The batch is sent to the device, if that is done ahead of the call.",
    "dispatch": "Calling the compiled step. On a CPU, small steps also run in this call.",
    "device_wait": "The host is far enough ahead and waits for a step to complete: the device is busy.",
    "compile": "Tracing and compiling the step.",
    "logging": "Writing log rows.",
    "validation": "Validation and test.",
    "checkpointing": "The part of saving that blocks the loop.",
    "callbacks": "Time in the callback itself, not in what it asks the trainer to do.",
    "other": "Everything else on the training thread.",
}


def build(summary: RunSummary, rows: MetricTable | None) -> Section:
    """The section.

    Args:
        summary: The summary of the run, for the totals.
        rows: The metrics of mode `time`; None without any.
    """
    ledger = summary.ledger
    if ledger is None or ledger.wall_s <= 0:
        content = missing("There is no ledger yet. A training with a log_path writes one about every ten seconds.")
        return Section("time", "Where the time went", content)
    content = [panel("In total", _totals_table(ledger))]
    charts = []
    course = _Course.of(rows) if rows is not None and len(rows) >= 2 else None
    if course is not None:
        charts.append(_chart(course))
        note = f"The parts add up to the wall time of the training thread.{_cut_note(course)}"
        content.append(panel("Over the run", chart=charts[0], note=note))
    else:
        text = "The run is too short for a chart over time: it needs two log rows."
        content.append(panel("Over the run", missing(text)))
    return Section("time", "Where the time went", content, lead=_lead(ledger), charts=charts)


def _lead(ledger: LedgerTotals) -> str:
    share = ledger.in_steps_s / ledger.wall_s
    others = {part: part_s for part, part_s in ledger.parts.items() if part not in STEP_PARTS}
    largest = max(others, key=others.__getitem__, default=None)
    text = f"Training steps took {percent(share)} of {seconds(ledger.wall_s)}."
    if largest is not None and others[largest] > 0:
        text += f" The largest other part is “{part_name(largest)}” with {percent(ledger.share(largest))}."
    return text


def _totals_table(ledger: LedgerTotals) -> Html:
    columns = [
        Column("part"),
        Column("seconds", is_number=True),
        Column("per step", is_number=True, explanation="Divided by all steps of the training.", is_minor=True),
        Column("share", is_number=True),
        Column(""),
    ]
    parts = sorted(ledger.parts.items(), key=lambda item: -item[1])
    shown = [(part, part_s) for part, part_s in parts if part_s >= _MIN_SHARE * ledger.wall_s]
    largest = max((ledger.share(part) for part, _ in shown), default=1.0)
    rows = [
        [
            Cell(term(part_name(part), _explanation(part)), part_name(part)),
            Cell(f"{part_s:,.2f}", part_s),
            Cell(seconds(part_s / ledger.num_steps) if ledger.num_steps else "", part_s),
            Cell(f"{100 * ledger.share(part):.1f} %", part_s),
            Cell(share_bar(ledger.share(part) / largest, part_class(part)), part_s),
        ]
        for part, part_s in shown
    ]
    return table(columns, rows, "Seconds by part of the ledger")


def _explanation(part: str) -> str:
    return EXPLANATIONS["callbacks" if part.startswith(CALLBACK) else part if part in PARTS else "other"]


@dataclass(frozen=True)
class _Course:
    """The parts over the run, one column per part."""

    parts: list[str]
    steps: np.ndarray
    """The last step of each interval."""
    values_ms: np.ndarray
    """Milliseconds per step."""
    num_steps: np.ndarray
    """How many steps each interval has."""

    @classmethod
    def of(cls, rows: MetricTable) -> Self | None:
        """From the rows of time, the parts of steps first, then the largest; None if no time was spent."""
        totals = {part: np.nansum(rows[f"{part}_ms"]) for part in (*PARTS, "callbacks") if f"{part}_ms" in rows}
        whole = sum(totals.values())
        parts = [part for part, total in totals.items() if total > _MIN_SHARE * whole]
        if not parts:
            return None
        parts.sort(key=lambda part: (part not in STEP_PARTS, -float(totals[part])))
        values_ms = np.nan_to_num(np.stack([rows[f"{part}_ms"] for part in parts], axis=1))
        return cls(parts, rows.step, values_ms, np.diff(rows.step, prepend=0).clip(min=1))

    @property
    def totals_ms(self) -> np.ndarray:
        """Milliseconds per step of all parts together."""
        return self.values_ms.sum(axis=1)

    @property
    def is_cut(self) -> np.ndarray:
        """Which intervals are so long, as one with a compile, that they would flatten all others."""
        return self.totals_ms > _MAX_MEDIANS * np.median(self.totals_ms)


def _cut_note(course: _Course) -> str:
    if not course.is_cut.any():
        return ""
    longest = int(np.argmax(course.totals_ms))
    number = int(course.is_cut.sum())
    are = "interval is" if number == 1 else "intervals are"
    return (
        f" In the view “ms per step”, {number:,} {are} cut off at the top (up to "
        f"{three_digits(float(course.totals_ms[longest]))} ms per step, at step {course.steps[longest]:,})."
    )


def _chart(course: _Course) -> Chart:
    """Two sets of areas: shares, averaged so that their sizes are right, and times, which keep the spikes."""
    num = len(course.parts)
    views = [View("Share", {"yaxis": {"range": [0, 100], "ticksuffix": " %", "fixedrange": True}}, list(range(num)))]
    full = {"rangemode": "tozero", "ticksuffix": " ms"}
    shown_ms = course.totals_ms[~course.is_cut]
    times = {"range": [0, 1.1 * float(shown_ms.max())], "ticksuffix": " ms"} if course.is_cut.any() else full
    views.append(View("ms per step", {"yaxis": times}, list(range(num, 2 * num))))
    if course.is_cut.any():
        views.append(View("Full range", {"yaxis": full}, list(range(num, 2 * num))))
    return Chart(
        "time-chart",
        "The parts of the wall time as stacked areas over the steps",
        [*_share_traces(course), *_time_traces(course)],
        {"xaxis": {"title": {"text": "step"}}, "hovermode": "x unified"},
        views,
        follows_steps=True,
    )


def _share_traces(course: _Course) -> list[dict[str, Any]]:
    starts = bucket_starts(len(course.steps), _MAX_BUCKETS)
    means = bucket_means(course.values_ms, course.num_steps.astype(float), _MAX_BUCKETS)
    total = means.sum(axis=1, keepdims=True)
    shares = 100 * np.divide(means, total, out=np.zeros_like(means), where=total > 0)
    ends = course.steps[np.append(starts[1:], len(course.steps)) - 1]
    return _traces(course, ends, shares, "%{y:.1f} %")


def _time_traces(course: _Course) -> list[dict[str, Any]]:
    kept = spike_indices(course.totals_ms, 2 * _MAX_BUCKETS)
    return _traces(course, course.steps[kept], course.values_ms[kept], "%{y:.3g} ms")


def _traces(course: _Course, ends: np.ndarray, values: np.ndarray, hover: str) -> list[dict[str, Any]]:
    """One area per part over the intervals with these ends."""
    steps = np.insert(ends, 0, course.steps[0] - course.num_steps[0])
    levels = np.insert(values, 0, values[0], axis=0)
    return [
        as_interval_means(
            area(
                steps,
                levels[:, column],
                part_name(part),
                part_colour(part),
                hovertemplate=f"{hover}<extra>{part_name(part)}</extra>",
            )
        )
        for column, part in enumerate(course.parts)
    ]
