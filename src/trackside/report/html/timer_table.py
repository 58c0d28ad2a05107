"""What the timers in the user's code measured."""

from collections.abc import Mapping
from typing import Any

from trackside.report.html.markup import Cell, Column, table
from trackside.report.html.section import Section, panel
from trackside.text import seconds

_MAX_TIMERS = 100


def build(timers: Mapping[str, Mapping[str, Any]]) -> Section | None:
    """The section; None without timers, as in most runs.

    Args:
        timers: `RunSummary.timers`.
    """
    if not timers:
        return None
    columns = [
        Column("operation", is_code=True),
        Column("mean", is_number=True),
        Column("p95", is_number=True, is_minor=True),
        Column("total", is_number=True),
        Column("calls", is_number=True),
    ]
    timed = {name: row for name, row in timers.items() if isinstance(row, Mapping)}
    ordered = sorted(timed.items(), key=lambda item: -(item[1].get("total_time") or 0.0))
    rows = [
        [name, *(_seconds_cell(row.get(key)) for key in ("avg_time", "p95_time", "total_time")), row.get("count", "-")]
        for name, row in ordered[:_MAX_TIMERS]
    ]
    return Section("timers", "Timers", panel("Timed operations", table(columns, rows, "Timers")))


def _seconds_cell(time_s: float | None) -> Cell:
    return Cell("-" if time_s is None else seconds(time_s), time_s or 0.0)
