"""Captures of a run that were analysed, and the figures of one that several sections need."""

from collections.abc import Mapping
from typing import Any

from trackside.runs import Run

Report = Mapping[str, Any]
"""What `trackside.trace.TraceReport.to_dict` gives."""


def analysed(run: Run) -> list[dict[str, Any]]:
    """The captures with a report that has busy time to tell of, the oldest first."""
    return [row for row in run.captures if _busy_s(row.get("report") or {}) > 0]


def last_report(run: Run) -> dict[str, Any] | None:
    """The newest of them."""
    captures = analysed(run)
    return captures[-1] if captures else None


def _busy_s(report: Report) -> float:
    return (report.get("coverage") or {}).get("busy_s") or 0.0


def num_devices(report: Report) -> int:
    """The devices that ran something in the window."""
    return sum((device.get("window_s") or 0.0) > 0 for device in report.get("devices") or ())


def per_step(report: Report, busy_s: float) -> float | None:
    """A time of the tables as seconds per step and device; None where the steps are not known."""
    divisor = (report.get("num_steps") or 0) * num_devices(report)
    return busy_s / divisor if divisor else None
