"""Where the wall time went, in total and over the run."""

import numpy as np

from trackside.profiling.ledger import PARTS, STEP_PARTS, LedgerTotals
from trackside.profiling.ledger_text import part_name
from trackside.report.downsample import bucket_means, bucket_starts, spike_indices
from trackside.report.html.charts import Chart, View, area, part_class, part_colour
from trackside.report.html.markup import Cell, Column, Html, missing, share_bar, table, term
from trackside.report.html.section import Section, panel
from trackside.report.run_summary import RunSummary
from trackside.runs import MetricTable
from trackside.text import seconds

_MAX_BUCKETS = 400
_MIN_SHARE = 0.0005

EXPLANATIONS = {
    "data_wait": "The loader makes the next batch, and the loop waits for it.",
    "host_to_device": "The batch is sent to the device, where that is done ahead of the call.",
    "dispatch": "The compiled step is called. On a CPU, small steps also run in it.",
    "device_wait": "The host is far enough ahead and waits for a step to complete: the device is at work.",
    "compile": "The step is traced and compiled.",
    "logging": "Rows are written.",
    "validation": "Validation and test.",
    "checkpointing": "The part of saving that the loop has to wait for.",
    "callbacks": "Callbacks, without what they ask the trainer to do.",
    "other": "Everything else on the thread that trains.",
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
    chart = _areas(rows) if rows is not None and len(rows) >= 2 else None
    if chart is not None:
        charts.append(chart)
        note = "The parts sum up to the wall time of the thread that trains. In the view “ms per step” spikes are kept."
        content.append(panel("Over the run", chart=chart, note=note))
    else:
        text = "The run is too short for a chart over time: it needs two log rows."
        content.append(panel("Over the run", missing(text)))
    return Section("time", "Where the time went", content, lead=_lead(ledger), charts=charts)


def _lead(ledger: LedgerTotals) -> str:
    share = ledger.in_steps_s / ledger.wall_s
    others = {part: part_s for part, part_s in ledger.parts.items() if part not in STEP_PARTS}
    largest = max(others, key=others.__getitem__, default=None)
    text = f"Training steps were under way in {100 * share:.0f} % of {seconds(ledger.wall_s)}."
    if largest is not None and others[largest] > 0:
        text += f" The largest other part is “{part_name(largest)}”, {100 * ledger.share(largest):.0f} %."
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
            Cell(term(part_name(part), EXPLANATIONS[part_key(part)]), part_name(part)),
            Cell(f"{part_s:,.2f}", part_s),
            Cell(seconds(part_s / ledger.num_steps) if ledger.num_steps else "", part_s),
            Cell(f"{100 * ledger.share(part):.1f} %", part_s),
            Cell(share_bar(ledger.share(part) / largest, f"part-{part_class(part)}"), part_s),
        ]
        for part, part_s in shown
    ]
    return table(columns, rows, "Seconds by part of the ledger")


def part_key(part: str) -> str:
    """Under which name a part is explained."""
    return part_class(part).replace("-", "_")


def _areas(rows: MetricTable) -> Chart | None:
    """Two sets of areas: means, whose sizes are right, and single rows, which keep the spikes; None of no time."""
    keys = [part for part in (*PARTS, "callbacks") if f"{part}_ms" in rows]
    whole = sum(np.nansum(rows[f"{part}_ms"]) for part in keys)
    keys = [part for part in keys if np.nansum(rows[f"{part}_ms"]) > _MIN_SHARE * whole]
    if not keys:
        return None
    keys.sort(key=lambda part: (part not in STEP_PARTS, -float(np.nansum(rows[f"{part}_ms"]))))
    values = np.nan_to_num(np.stack([rows[f"{part}_ms"] for part in keys], axis=1))
    weights = np.diff(rows.step, prepend=0).clip(min=1).astype(float)
    starts = bucket_starts(len(values), _MAX_BUCKETS)
    means = bucket_means(values, weights, _MAX_BUCKETS)
    ends = rows.step[np.append(starts[1:], len(values)) - 1]
    total = means.sum(axis=1, keepdims=True)
    shares = 100 * np.divide(means, total, out=np.zeros_like(means), where=total > 0)
    kept = spike_indices(values.sum(axis=1), 2 * _MAX_BUCKETS)
    traces = []
    for column, part in enumerate(keys):
        name, colour = part_name(part), part_colour(part)
        hover = "%{y:.1f} %<extra>" + name + "</extra>"
        traces.append(area(ends, shares[:, column], name, colour, hovertemplate=hover))
    for column, part in enumerate(keys):
        name, colour = part_name(part), part_colour(part)
        hover = "%{y:.3g} ms<extra>" + name + "</extra>"
        traces.append(area(rows.step[kept], values[kept, column], name, colour, hovertemplate=hover))
    num = len(keys)
    views = [
        View("Share", {"yaxis": {"range": [0, 100], "ticksuffix": " %", "fixedrange": True}}, list(range(num))),
        View("ms per step", {"yaxis": {"rangemode": "tozero", "ticksuffix": " ms"}}, list(range(num, 2 * num))),
    ]
    layout = {"xaxis": {"title": {"text": "step"}}, "hovermode": "x unified"}
    return Chart(
        "time-chart",
        "The parts of the wall time as stacked areas over the steps",
        traces,
        layout,
        views,
        follows_steps=True,
    )
