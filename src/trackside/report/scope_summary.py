"""Where the device's time went by scope and phase, from the tables that a capture left in the event file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trackside.trace.capture_row import CaptureRow, analysed_captures
from trackside.trace.rates import step_rate
from trackside.trace.rollup import NOTICEABLE, roll_up
from trackside.trace.trace_report import TraceReport

MAX_SCOPES = 12


@dataclass(frozen=True)
class ScopeShare:
    """A scope with everything under it."""

    scope: str
    """The path; `<scope>/.` for what is in the scope itself, `<scope>/(n more)` for what remains of many."""
    shares: dict[str, float]
    """Shares of the device's busy time, by phase."""
    seconds_per_step: float | None
    """On one device; None where the steps are not known."""
    estimated_share: float = 0.0
    """What of its share is its part of kernels that compute for several scopes or phases, by estimate."""

    @property
    def share(self) -> float:
        """Its share over all phases."""
        return sum(self.shares.values())

    @property
    def is_estimated(self) -> bool:
        """Whether a noticeable part of its share is estimated."""
        return self.estimated_share > NOTICEABLE * self.share


@dataclass(frozen=True)
class ScopeSummary:
    """What a run's last capture says of its steps."""

    session: str
    path: str
    """Where the capture is."""
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
    estimated_share: float | None
    """How much of the busy time belongs to kernels that compute for several scopes or phases, and is split by
    estimate."""
    unsplit_share: float | None
    """How much belongs to kernels that may compute for several scopes, and cannot be split."""
    flops_per_s: float | None
    utilisation: float | None
    """FLOP/s as a share of the device's peak, where that is known."""
    utilisation_range: tuple[float, float] | None
    """The least and the most that this may be, where the peak was measured."""
    peak_temporary_bytes: int | None
    """What the step's temporaries take at their peak, where it was asked for."""
    peak_scope: str | None
    """Where that is."""
    busy_s_per_step: float | None = None
    """How long the device was busy with a step: what the scopes add up to."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def summarise_scopes(captures: Sequence[Mapping[str, Any]]) -> ScopeSummary | None:
    """The tables of the last capture that has some; None without one.

    Args:
        captures: The rows `capture` of a run, in order.
    """
    analysed = analysed_captures(captures)
    return _summarise(*analysed[-1]) if analysed else None


def _summarise(capture: CaptureRow, report: TraceReport) -> ScopeSummary:
    busy_s = report.coverage.busy_s
    scopes = [
        ScopeShare(row.label, row.shares, report.per_step(row.total * busy_s), row.estimated)
        for row in roll_up(report.scopes.rows, MAX_SCOPES)
    ]
    memory, rate = report.peak_memory, step_rate(report)
    return ScopeSummary(
        capture.session,
        capture.path,
        capture.first_step,
        capture.last_step,
        {phase: phase_s / busy_s for phase, phase_s in report.phases.items()},
        scopes,
        report.device_busy,
        report.coverage.resolved_share,
        report.coverage.estimated_share,
        report.coverage.unsplit_share,
        rate,
        capture.utilisation,
        capture.utilisation_range,
        None if memory is None else memory.peak_temporary_bytes,
        None if memory is None else "/".join(memory.peak_scope) or None,
        busy_s_per_step=report.per_step(busy_s),
    )
