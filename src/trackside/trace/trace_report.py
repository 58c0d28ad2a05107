"""What a trace says, as one object: the tables, the figures that sum them up, and what the trace does not tell."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from trackside.trace.hlo import HloModule
from trackside.trace.rates import achieved_rates, step_rate
from trackside.trace.scopes import PHASES
from trackside.trace.tables import (
    CategoryRow,
    CollectiveRow,
    Coverage,
    DeviceRow,
    GapTable,
    OpRow,
    ProgramRow,
    RunTable,
    ScopeRow,
    SourceRow,
    StepMarker,
    StepTime,
    Table,
    TransferRow,
)

if TYPE_CHECKING:
    from trackside.trace.flops import FlopTable
    from trackside.trace.peak_memory import PeakMemory

FORMAT = "trackside.trace/1"


@dataclass(frozen=True)
class TraceReport:
    """What a captured window says."""

    files: tuple[str, ...]
    """The files that were read, one per host; empty for bytes."""
    size_bytes: int
    num_events: int
    devices: tuple[DeviceRow, ...]
    programs: tuple[ProgramRow, ...]
    """All programs that ran, also those that the tables leave out."""
    step_program: str | None
    """The program that makes the steps; None where no execution could be told."""
    num_steps: int | None
    """The steps in the window; None where no execution could be told."""
    step_time: StepTime | None
    """None where fewer than two executions of the step program were recorded."""
    markers: tuple[StepMarker, ...]
    runs: RunTable
    scopes: Table[ScopeRow]
    ops: Table[OpRow]
    categories: Table[CategoryRow]
    sources: Table[SourceRow]
    """Source lines of the user's; what comes from none is not in it, and the rows' shares say how much that is."""
    collectives: Table[CollectiveRow]
    transfers: tuple[TransferRow, ...]
    gaps: GapTable
    coverage: Coverage
    missing: list[str]
    """What the trace lacks. The figures that would need it are absent, not zero."""
    warnings: list[str]
    modules: Mapping[str, HloModule] = field(default_factory=dict, repr=False)
    """The HLO of the programs that ran, by name."""
    flops: "FlopTable | None" = None
    """FLOPs by scope, once added with `dataclasses.replace`."""
    peak_memory: "PeakMemory | None" = None
    """Peak memory by scope, once added with `dataclasses.replace`."""

    @property
    def device_busy(self) -> float | None:
        """The share of the window in which a device was busy, over all devices; None without any execution."""
        window = sum(device.window_s for device in self.devices)
        return sum(device.busy_s for device in self.devices) / window if window else None

    @property
    def phases(self) -> dict[str, float]:
        """Busy seconds by phase; only those phases that there are."""
        totals = {phase: [row.busy_s for row in self.scopes if row.phase == phase] for phase in PHASES}
        return {phase: sum(times) for phase, times in totals.items() if times}

    def per_step(self, busy_s: float) -> float | None:
        """A time in the tables as seconds per step and device; None where the steps are not known."""
        num_devices = sum(device.window_s > 0 for device in self.devices)
        return busy_s / (self.num_steps * num_devices) if self.num_steps and num_devices else None

    def scalars(self) -> dict[str, float]:
        """The figures for a logger. What the trace does not tell is left out."""
        found: dict[str, float | None] = {
            "device_busy_share": self.device_busy,
            "coverage": self.coverage.resolved_share,
            "scope_coverage": self.coverage.scoped_share,
        }
        if self.step_time is not None:
            found["step_time_ms"] = self.step_time.mean_s * 1e3
            found["step_time_median_ms"] = self.step_time.median_s * 1e3
            found["step_time_p95_ms"] = self.step_time.p95_s * 1e3
        if set(self.phases) - {"other"}:
            for phase, busy_s in self.phases.items():
                per_step = self.per_step(busy_s)
                found[f"{phase}_ms"] = None if per_step is None else per_step * 1e3
        collective = self.per_step(sum(row.busy_s for row in self.collectives))
        if len(self.collectives) and collective is not None:
            found["collective_ms"] = collective * 1e3
        rate = step_rate(self)
        found["gflops_per_second"] = None if rate is None else rate / 1e9
        return {name: value for name, value in found.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        tables = ("runs", "scopes", "ops", "categories", "sources", "collectives", "gaps")
        return {
            "format": FORMAT,
            "files": list(self.files),
            "size_bytes": self.size_bytes,
            "num_events": self.num_events,
            "step_program": self.step_program,
            "num_steps": self.num_steps,
            "step_time": asdict(self.step_time) if self.step_time else None,
            "device_busy": self.device_busy,
            "phases": self.phases,
            "devices": [{**asdict(device), "idle_s": device.idle_s} for device in self.devices],
            "programs": [asdict(program) for program in self.programs],
            "markers": [asdict(marker) for marker in self.markers],
            "transfers": [asdict(transfer) for transfer in self.transfers],
            "coverage": self.coverage.to_dict(),
            **{name: getattr(self, name).to_dict() for name in tables},
            "flops": asdict(self.flops) if self.flops else None,
            "rates": [asdict(row) for row in achieved_rates(self)],
            "peak_memory": asdict(self.peak_memory) if self.peak_memory else None,
            "missing": list(self.missing),
            "warnings": list(self.warnings),
            "scalars": self.scalars(),
        }


def step_markers(report: TraceReport) -> tuple[StepMarker, ...]:
    """The step markers of a window, in time."""
    return report.markers
