"""Whether the device was busy, and what the host did while it was not."""

from collections.abc import Sequence

import numpy as np

from trackside.profiling.ledger_text import idle_interval, part_name
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.report.html.charts import MAX_POINTS, Chart, as_interval_means, line, part_classes
from trackside.report.html.markup import Cell, Column, Html, joined, table
from trackside.report.html.section import Section, panel
from trackside.runs import MetricTable, Run
from trackside.runs.downsample import spike_indices
from trackside.text import chart_label, percent, seconds
from trackside.trace.capture_row import CaptureRow, analysed_captures
from trackside.trace.tables import Gap
from trackside.trace.trace_report import TraceReport

_NUM_GAPS = 8
_MIN_SHARE = 0.0005


def build(run: Run) -> Section:
    """The section."""
    ledger = run.ledger
    content, charts = [], []
    if ledger is not None and ledger.idle_share is not None:
        chart = _bar(ledger)
        charts.append(chart)
        note = "Reasons are what the host did while the device had nothing to do. Estimated by the loop, all the time."
        content.append(panel("Between the first and the last step", chart=chart, note=note))
    course = _course(run.metrics.get("time"))
    if course is not None:
        charts.append(course)
        content.append(panel("Idle share over the run", chart=course))
    analysed = analysed_captures(run.captures)
    if analysed and analysed[-1][1].devices:
        content.append(_measured(*analysed[-1]))
    if not content:
        hint = joined("It was not observed: no step completed, or the run was written without a ledger.")
        return Section("device", "Device", missing=[hint])
    return Section("device", "Device", content, lead=_lead(ledger), charts=charts)


def _lead(ledger: LedgerTotals | None) -> str | None:
    if ledger is None or ledger.idle_share is None:
        return None
    shown = f"{percent(1 - ledger.idle_share)}{idle_interval(ledger, of_busy=True)}"
    idle = f"The device was busy {shown} of the time between steps."
    reasons = [(part, part_s) for part, part_s in ledger.idle_by_reason.items() if part_s > 0]
    if not reasons:
        return idle
    part, part_s = max(reasons, key=lambda item: item[1])
    return f"{idle} It idled most while the host was in “{part_name(part)}”: {seconds(part_s)}."


def _bar(ledger: LedgerTotals) -> Chart:
    busy_s, idle_s = ledger.device_busy_s or 0.0, ledger.device_idle_s or 0.0
    observed_s = busy_s + idle_s or 1.0
    reasons = sorted(ledger.idle_by_reason.items(), key=lambda item: -item[1])
    unexplained_s = idle_s - sum(part_s for _, part_s in reasons)
    pieces = [("busy", busy_s, "--good")]
    classes = part_classes(dict.fromkeys((*ledger.parts, *ledger.idle_by_reason)))
    pieces += [(f"idle: {part_name(part)}", part_s, f"--{classes[part]}") for part, part_s in reasons]
    if unexplained_s > 0.001 * observed_s:
        pieces.append(("idle: not known why", unexplained_s, "--muted"))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [100 * piece_s / observed_s],
            "y": ["device"],
            "name": chart_label(name),
            "marker": {"color": colour},
            "text": [seconds(piece_s)],
            "textposition": "none",
            "hovertemplate": "%{x:.1f} %, %{text}<extra>%{fullData.name}</extra>",
        }
        for name, piece_s, colour in pieces
        if piece_s > _MIN_SHARE * observed_s
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"range": [0, 100], "ticksuffix": " %", "fixedrange": True},
        "yaxis": {"showticklabels": False, "fixedrange": True},
        "hovermode": "closest",
    }
    return Chart("device-chart", "Busy and idle time of the device, by reason", traces, layout, size="bar")


def _course(rows: MetricTable | None) -> Chart | None:
    if rows is None or "device_idle_share" not in rows:
        return None
    shares = 100 * rows["device_idle_share"]
    present = rows.present("device_idle_share")
    if np.isfinite(shares[present]).sum() < 2:
        return None
    kept = present[spike_indices(shares[present], MAX_POINTS)]
    hover = "step %{x}: %{y:.1f} % idle<extra></extra>"
    levels = line(rows.step[kept], shares[kept], "idle", "--accent", hovertemplate=hover)
    traces = [as_interval_means({**levels, "mode": "lines"})]
    layout = {
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"range": [0, 100], "ticksuffix": " %", "fixedrange": True},
    }
    return Chart(
        "idle-chart",
        "The idle share of the device over the steps",
        traces,
        layout,
        follows_steps=True,
        size="small",
        has_legend=False,
    )


def _measured(capture: CaptureRow, report: TraceReport) -> Html:
    title = f"Measured in the capture of steps {capture.first_step:,} to {capture.last_step:,}"
    columns = [
        Column("device"),
        Column("window", is_number=True),
        Column("busy", is_number=True),
        Column("busy share", is_number=True),
    ]
    rows = [
        [
            row.name,
            Cell(seconds(row.window_s), row.window_s),
            Cell(seconds(row.busy_s), row.busy_s),
            Cell(percent(row.busy_s / row.window_s), row.busy_s / row.window_s),
        ]
        for row in report.devices
        if row.window_s > 0
    ]
    gaps = report.gaps.largest
    return panel(title, table(columns, rows, "Busy time by device"), _gap_table(gaps) if gaps else None)


def _gap_table(gaps: Sequence[Gap]) -> Html:
    columns = [
        Column("largest gaps", explanation="Stretches in which a device did nothing, in the captured window."),
        Column("where", is_minor=True),
        Column("device", is_minor=True),
        Column("the host was in", is_code=True, explanation="What the host did for the longest part of the gap."),
    ]
    rows = [
        [Cell(seconds(gap.duration_s), gap.duration_s), gap.kind, gap.device, gap.host_activity or "-"]
        for gap in gaps[:_NUM_GAPS]
    ]
    return table(columns, rows, "The largest gaps")
