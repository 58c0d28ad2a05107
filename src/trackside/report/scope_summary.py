"""Where the device's time went by scope and phase, from the tables that a capture left in the event file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trackside.trace.rollup import roll_up
from trackside.trace.scopes import PHASES
from trackside.trace.tables import ScopeRow

MAX_SCOPES = 12


@dataclass(frozen=True)
class ScopeShare:
    """A scope with all that lies under it."""

    scope: str
    """The path; `<scope>/.` for what lies in the scope itself, `<scope>/(n more)` for what remains of many."""
    shares: dict[str, float]
    """Shares of the device's busy time, by phase."""
    seconds_per_step: float | None
    """On one device; None where the steps are not known."""

    @property
    def share(self) -> float:
        """Its share over all phases."""
        return sum(self.shares.values())


@dataclass(frozen=True)
class ScopeSummary:
    """What a run's last capture says of its steps."""

    session: str
    path: str
    """Where the capture lies."""
    first_step: int
    last_step: int
    phases: dict[str, float]
    """Shares of the busy time, by phase."""
    scopes: list[ScopeShare]
    """The largest first; they sum to the whole."""
    device_busy_share: float | None
    """The share of the captured window in which the device was busy."""
    resolved_share: float | None
    """How much of the busy time could be attributed."""
    flops_per_s: float | None
    utilisation: float | None
    """FLOP/s as a share of the device's peak, where that is known."""
    peak_temporary_bytes: int | None
    """What the step's temporaries take at their peak, where it was asked for."""
    peak_scope: str | None
    """Where that is."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def summarise_scopes(captures: Sequence[Mapping[str, Any]]) -> ScopeSummary | None:
    """The tables of the last capture that has some; None without one.

    Args:
        captures: The rows `capture` of a run, in order.
    """
    for row in reversed(captures):
        report = row.get("report")
        if report and (report.get("coverage") or {}).get("busy_s"):
            return _summarise(row, report)
    return None


def _summarise(row: Mapping[str, Any], report: Mapping[str, Any]) -> ScopeSummary:
    busy_s = report["coverage"]["busy_s"]
    scope_rows = tuple(ScopeRow(**plain) for plain in report["scopes"]["rows"])
    num_devices = sum(device["window_s"] > 0 for device in report["devices"])
    per_share_s = busy_s / (report["num_steps"] * num_devices) if report.get("num_steps") and num_devices else None
    scopes = [
        ScopeShare(scope, shares, None if per_share_s is None else sum(shares.values()) * per_share_s)
        for scope, shares in roll_up(scope_rows, MAX_SCOPES)
    ]
    memory = report.get("peak_memory") or {}
    rate = (report.get("scalars") or {}).get("gflops_per_second")
    return ScopeSummary(
        row.get("session", ""),
        str(row.get("path", "")),
        row["first_step"],
        row["last_step"],
        {phase: report["phases"][phase] / busy_s for phase in PHASES if phase in report["phases"]},
        scopes,
        report.get("device_busy"),
        report["coverage"].get("resolved_share"),
        None if rate is None else rate * 1e9,
        row.get("utilisation"),
        memory.get("peak_temporary_bytes"),
        "/".join(memory.get("peak_scope") or ()) or None,
    )
