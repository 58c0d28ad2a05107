"""Where the wall time went, in total and over the run."""

from typing import Any

import numpy as np

from trackside.profiling.ledger_text import outside_sentence, part_name
from trackside.profiling.ledger_totals import CALLBACK, DRAIN, PARTS, STEP_PARTS, LedgerTotals
from trackside.report.html.charts import Chart, View, area, as_interval_means, part_classes
from trackside.report.html.markup import Cell, Column, Html, joined, share_bar, table, term
from trackside.report.html.section import Section, panel
from trackside.report.run_summary import RunSummary
from trackside.runs import MetricTable
from trackside.runs.downsample import spike_indices
from trackside.runs.ledger_course import CALLBACKS, MIN_SHARE, LedgerCourse
from trackside.text import percent, seconds, three_digits

_MAX_BUCKETS = 400

EXPLANATIONS = {
    "data_wait": "The loop waits for the loader to produce the next batch.",
    "host_to_device": "The batch is sent to the device, if that is done ahead of the call.",
    "dispatch": "Calling the compiled step. On a CPU, small steps also run in this call.",
    "device_wait": "The host is far enough ahead and waits for a step to complete: the device is busy.",
    "compile": "Tracing and compiling, whichever program it is for.",
    "logging": "Writing log rows.",
    "validation": "Validation and test.",
    "checkpointing": "The part of saving that blocks the loop.",
    "setup": "Building the trainer and the training, without compiling.",
    "initial_state": "Making the first parameters and optimizer state, without compiling.",
    "restoring": "Reading checkpoints: to resume, and to test the best model.",
    "drain": "Closing a logging tool, and waiting until it has written what was logged.",
    CALLBACKS: "Time in the callback itself, not in what it asks the trainer to do.",
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
        hint = joined("There is no ledger yet. A training with a folder writes one about every ten seconds.")
        return Section("time", "Where the time went", missing=[hint])
    content = [panel("In total", _totals_table(ledger))]
    charts = []
    course = LedgerCourse.of(rows)
    if course is not None:
        charts.append(_chart(course, part_classes(dict.fromkeys((*ledger.parts, *course.parts)))))
        note = f"The parts add up to the wall time of the training thread.{_cut_note(course)}"
        content.append(panel("Over the run", chart=charts[0], note=note))
    return Section("time", "Where the time went", content, lead=_lead(ledger), charts=charts)


def _lead(ledger: LedgerTotals) -> str:
    share = ledger.in_steps_s / ledger.wall_s
    others = {part: part_s for part, part_s in ledger.parts.items() if part not in STEP_PARTS}
    largest = max(others, key=others.__getitem__, default=None)
    text = f"Training steps took {percent(share)} of {seconds(ledger.wall_s)}."
    if largest is not None and others[largest] > 0:
        text += f" The largest other part is “{part_name(largest)}” with {percent(ledger.share(largest))}."
    outside = outside_sentence(ledger)
    return f"{text} {outside[:1].upper()}{outside[1:]}." if outside else text


def _totals_table(ledger: LedgerTotals) -> Html:
    columns = [
        Column("part"),
        Column("seconds", is_number=True),
        Column("per step", is_number=True, explanation="Divided by all steps of the training.", is_minor=True),
        Column("share", is_number=True),
        Column(""),
    ]
    parts = sorted(ledger.parts.items(), key=lambda item: -item[1])
    shown = [(part, part_s) for part, part_s in parts if part_s >= MIN_SHARE * ledger.wall_s]
    largest = max((ledger.share(part) for part, _ in shown), default=1.0)
    classes = part_classes(ledger.parts)
    rows = [
        [
            Cell(term(part_name(part), _explanation(part)), part_name(part)),
            Cell(f"{part_s:,.2f}", part_s),
            Cell(seconds(part_s / ledger.num_steps) if ledger.num_steps else "", part_s),
            Cell(f"{100 * ledger.share(part):.1f} %", part_s),
            Cell(share_bar(ledger.share(part) / largest, classes[part]), part_s),
        ]
        for part, part_s in shown
    ]
    return table(columns, rows, "Seconds by part of the ledger")


def _explanation(part: str) -> str:
    if part.startswith(DRAIN):
        return EXPLANATIONS["drain"]
    return EXPLANATIONS[CALLBACKS if part.startswith(CALLBACK) else part if part in PARTS else "other"]


def _cut_note(course: LedgerCourse) -> str:
    if not course.is_cut.any():
        return ""
    longest = int(np.argmax(course.totals_ms))
    number = int(course.is_cut.sum())
    are = "interval is" if number == 1 else "intervals are"
    return (
        f" In the view “ms per step”, {number:,} {are} cut off at the top (up to "
        f"{three_digits(float(course.totals_ms[longest]))} ms per step, at step {course.steps[longest]:,})."
    )


def _chart(course: LedgerCourse, classes: dict[str, str]) -> Chart:
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
        [*_share_traces(course, classes), *_time_traces(course, classes)],
        {"xaxis": {"title": {"text": "step"}}, "hovermode": "x unified"},
        views,
        follows_steps=True,
    )


def _share_traces(course: LedgerCourse, classes: dict[str, str]) -> list[dict[str, Any]]:
    ends, shares = course.shares(_MAX_BUCKETS)
    return _traces(course, classes, ends, shares, "%{y:.1f} %")


def _time_traces(course: LedgerCourse, classes: dict[str, str]) -> list[dict[str, Any]]:
    kept = spike_indices(course.totals_ms, 2 * _MAX_BUCKETS)
    return _traces(course, classes, course.steps[kept], course.values_ms[kept], "%{y:.3g} ms")


def _traces(
    course: LedgerCourse, classes: dict[str, str], ends: np.ndarray, values: np.ndarray, hover: str
) -> list[dict[str, Any]]:
    """One area per part over the intervals with these ends."""
    steps = np.insert(ends, 0, course.first_step)
    levels = np.insert(values, 0, values[0], axis=0)
    return [
        as_interval_means(
            area(
                steps,
                levels[:, column],
                part_name(part),
                f"--{classes[part]}",
                hovertemplate=f"{hover}<extra>%{{fullData.name}}</extra>",
            )
        )
        for column, part in enumerate(course.parts)
    ]
