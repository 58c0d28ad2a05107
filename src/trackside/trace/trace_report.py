"""What a trace says, as one object: the tables, the figures that sum them up, and what the trace does not tell."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import numpy as np

from trackside.errors import TraceError
from trackside.text import a_type
from trackside.trace.flop_table import FlopTable
from trackside.trace.hlo import HloModule
from trackside.trace.peak_memory import PeakMemory
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

FORMAT = "trackside.trace/1"


@dataclass(frozen=True)
class TraceReport:
    """What a captured window says."""

    files: tuple[str, ...] = ()
    """The files that were read, one per host; empty for bytes."""
    size_bytes: int = 0
    num_events: int = 0
    devices: tuple[DeviceRow, ...] = ()
    programs: tuple[ProgramRow, ...] = ()
    """All programs that ran, including those that the tables leave out."""
    step_program: str | None = None
    """The program that makes the steps; None if no execution was recognized."""
    num_steps: int | None = None
    """The steps in the window; None if no execution was recognized."""
    step_time: StepTime | None = None
    """None if fewer than two executions of the step program were recorded."""
    markers: tuple[StepMarker, ...] = ()
    """The step markers of the window, in time."""
    runs: RunTable = field(default_factory=RunTable)
    scopes: Table[ScopeRow] = field(default_factory=Table)
    ops: Table[OpRow] = field(default_factory=Table)
    categories: Table[CategoryRow] = field(default_factory=Table)
    sources: Table[SourceRow] = field(default_factory=Table)
    """Lines of the user's source. What comes from none is left out, and the rows' shares show how much that is."""
    collectives: Table[CollectiveRow] = field(default_factory=Table)
    transfers: tuple[TransferRow, ...] = ()
    gaps: GapTable = field(default_factory=GapTable)
    coverage: Coverage = field(default_factory=Coverage)
    missing: list[str] = field(default_factory=list)
    """What the trace lacks. The figures that would need it are absent, not zero."""
    warnings: list[str] = field(default_factory=list)
    modules: Mapping[str, HloModule] = field(default_factory=dict, repr=False, compare=False)
    """The HLO of the programs that ran, by name; not among the plain values, and empty in a report read back."""
    flops: FlopTable | None = None
    """FLOPs by scope, once added with `dataclasses.replace`."""
    peak_memory: PeakMemory | None = None
    """Peak memory by scope, once added with `dataclasses.replace`."""

    @property
    def num_devices(self) -> int:
        """The devices that ran something in the window."""
        return sum(device.window_s > 0 for device in self.devices)

    @property
    def window_s(self) -> float | None:
        """From the start of the first execution to the end of the last, in the mean over devices; None without any."""
        return sum(device.window_s for device in self.devices) / self.num_devices if self.num_devices else None

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
        num_parts = (self.num_steps or 0) * self.num_devices
        return busy_s / num_parts if num_parts else None

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

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "TraceReport":
        """The inverse of `to_dict`: the same report, without `modules`.

        Args:
            plain: What `to_dict` gave, from JSON or not. A field that an earlier version did not write yet gets its
                default; figures that follow from the tables are computed again.

        Raises:
            TraceError: It is no report, is of a newer format, or a field has a value of the wrong type. The message
                names the field.
        """
        if not isinstance(plain, Mapping):
            raise TraceError(f"report: expected what TraceReport.to_dict() gave; got {type(plain).__name__}")
        given = plain.get("format", FORMAT)
        if given != FORMAT:
            shown = repr(given) if isinstance(given, str) else a_type(given)
            raise TraceError(f"report: its format is {shown}; this trackside reads {FORMAT!r}. Use a newer trackside.")
        # What follows from the tables, and what cannot be read back, is not looked at.
        fields = {name: value for name, value in plain.items() if name in _PLAIN_FIELDS and value is not None}
        try:
            return msgspec.convert(fields, cls, dec_hook=_read_column)
        except (msgspec.ValidationError, OverflowError, RecursionError) as error:
            raise TraceError(f"report: it was damaged, or not written by TraceReport.to_dict() ({error})") from error


_PLAIN_FIELDS = frozenset(TraceReport.__dataclass_fields__) - {"modules"}


def _read_column(kind: type, value: Any) -> Any:
    """A column of a table; `RunTable` gives it its type."""
    if kind is np.ndarray and isinstance(value, list):
        return np.array(value)
    raise ValueError(f"a column must be a list, and this is {type(value).__name__}")


def step_markers(report: TraceReport) -> tuple[StepMarker, ...]:
    """The step markers of a window, in time: `report.markers`."""
    return report.markers
