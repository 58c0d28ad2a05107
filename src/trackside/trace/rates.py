"""Achieved FLOP/s: what the program has to compute in a scope, over the time that the device took for it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.trace.tables import NO_SCOPE

if TYPE_CHECKING:
    from trackside.trace.trace_report import TraceReport

_MIN_SHARE = 0.01


@dataclass(frozen=True)
class RateRow:
    """The matrix products and convolutions of one scope in one phase, per step."""

    scope: str
    phase: str
    flops: int
    """Those of one step, on all devices together."""
    busy_s: float | None
    """The time of the scope in one step on one device; None where the trace has none under this name, since it was
    fused into another."""
    flops_per_s: float | None
    """What one device achieved."""


def achieved_rates(report: "TraceReport") -> list[RateRow]:
    """FLOP/s by scope and phase, the most FLOPs first; empty without FLOPs."""
    if report.flops is None:
        return []
    busy = {(row.scope, row.phase): row.busy_s for row in report.scopes}
    rows = []
    for row in report.flops.rows:
        scope = "/".join(row.scope) or NO_SCOPE
        total_s = busy.get((scope, row.phase))
        busy_s = None if total_s is None else report.per_step(total_s)
        if row.flops:
            rows.append(RateRow(scope, row.phase, row.flops, busy_s, _rate(report, row.flops, busy_s)))
    return rows


def rate_under(report: "TraceReport", label: str, share: float) -> float | None:
    """What one device achieved in a row of the rolled-up table; None for one that has hardly any time.

    The work of such a scope was fused into another, whose time it took.

    Args:
        report: The report.
        label: The row: a scope with everything under it, or `<scope>/.` for the scope itself.
        share: Its share of the busy time.
    """
    if report.flops is None or share < _MIN_SHARE or label.endswith("more)"):
        return None
    itself = label.removesuffix("/.")
    flops = 0
    for row in report.flops.rows:
        scope = "/".join(row.scope) or NO_SCOPE
        is_under = scope == itself or (itself == label and scope.startswith(f"{label}/"))
        flops += row.flops if is_under else 0
    return _rate(report, flops, report.per_step(share * report.coverage.busy_s)) if flops else None


def step_rate(report: "TraceReport") -> float | None:
    """The FLOP/s of all devices together, over the step time."""
    if report.flops is None or report.step_time is None or not report.step_time.mean_s:
        return None
    return report.flops.flops / report.step_time.mean_s


def _rate(report: "TraceReport", flops: int, busy_s: float | None) -> float | None:
    return flops / report.num_devices / busy_s if busy_s and report.num_devices else None
