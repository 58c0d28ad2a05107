"""The tables of a trace report. Times are seconds of device time, summed over the devices; shares are of busy time."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from trackside.trace.hlo import Frame

Row = TypeVar("Row")
NO_SCOPE = "(no scope)"


@dataclass(frozen=True)
class Coverage:
    """How much of the busy time is accounted for."""

    busy_s: float
    """The time in which the devices executed operations of the chosen programs."""
    resolved_s: float
    """The part that belongs to operations whose metadata says where they come from."""
    inferred_s: float
    """What of that belongs to operations without metadata, counted to the operation next to them."""
    scoped_s: float
    """The part under a scope of the user's: a `jax.named_scope`, a module's name."""

    @property
    def unattributed_s(self) -> float:
        """The part of which the trace does not say where it comes from."""
        return max(self.busy_s - self.resolved_s, 0.0)

    @property
    def resolved_share(self) -> float | None:
        """`resolved_s` as a share of the busy time; None if there was none."""
        return self.resolved_s / self.busy_s if self.busy_s else None

    @property
    def scoped_share(self) -> float | None:
        """`scoped_s` as a share of the busy time; None if there was none."""
        return self.scoped_s / self.busy_s if self.busy_s else None

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            **asdict(self),
            "unattributed_s": self.unattributed_s,
            "resolved_share": self.resolved_share,
            "scoped_share": self.scoped_share,
        }


@dataclass(frozen=True)
class Table(Generic[Row]):
    """Rows, the longest time first, and how much of the busy time is accounted for."""

    rows: tuple[Row, ...]
    coverage: Coverage

    def __iter__(self):
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"rows": [asdict(row) for row in self.rows], "coverage": self.coverage.to_dict()}  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class ScopeRow:
    """The time under one scope in one phase."""

    scope: str
    """The path, such as `loss/Net/Dense_0`; `(no scope)` for what lies under none."""
    phase: str
    busy_s: float
    share: float
    num_ops: int
    """How many operations were executed."""


@dataclass(frozen=True)
class OpRow:
    """The time of one operation of a program, over all its executions."""

    op: str
    program: str
    opcode: str
    category: str
    scope: str
    phase: str
    source: str
    """`file:line`, empty where it is not known."""
    busy_s: float
    share: float
    num_ops: int


@dataclass(frozen=True)
class CategoryRow:
    """The time of one kind of operations."""

    category: str
    busy_s: float
    share: float
    num_ops: int


@dataclass(frozen=True)
class SourceRow:
    """The time that a line of the user's source causes."""

    file: str
    line: int
    function: str
    busy_s: float
    share: float
    num_ops: int


@dataclass(frozen=True)
class CollectiveRow:
    """The time of one collective operation."""

    op: str
    opcode: str
    scope: str
    busy_s: float
    """Its share of the wall, as in the other tables."""
    span_s: float
    """From its start to its end, other operations beside it included."""
    share: float
    num_ops: int
    num_bytes: int | None
    """What one device puts into one execution; None where the trace does not tell."""


@dataclass(frozen=True)
class TransferRow:
    """Copies that run beside the operations and are no part of the busy time."""

    name: str
    span_s: float
    num_ops: int


@dataclass(frozen=True)
class ProgramRow:
    """A program that ran in the window."""

    name: str
    busy_s: float
    num_runs: int | None
    """How often it was executed, on all devices; None where the trace does not tell."""
    is_selected: bool
    """Whether the tables hold it."""


@dataclass(frozen=True)
class DeviceRow:
    """How busy a device was between the first start and the last end of the chosen programs' executions."""

    name: str
    window_s: float
    busy_s: float

    @property
    def idle_s(self) -> float:
        """The rest of the window."""
        return self.window_s - self.busy_s


@dataclass(frozen=True)
class RunTable:
    """The executions of the chosen programs, by device and start. One entry per execution in each column."""

    program: tuple[str, ...]
    device: tuple[str, ...]
    run_id: np.ndarray
    step: np.ndarray
    """The first step that it made; -1 where no step marker tells."""
    num_steps: np.ndarray
    """How many steps it made: more than one where a call makes several."""
    start_s: np.ndarray
    """Since the first event of the trace."""
    end_s: np.ndarray
    busy_s: np.ndarray
    """Its share of the device's busy time."""
    idle_s: np.ndarray
    """Time between its start and its end in which the device did nothing."""
    coverage: Coverage

    def __len__(self) -> int:
        return len(self.run_id)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        names = ("run_id", "step", "num_steps", "start_s", "end_s", "busy_s", "idle_s")
        columns = {name: getattr(self, name).tolist() for name in names}
        return {
            "program": list(self.program),
            "device": list(self.device),
            **columns,
            "coverage": self.coverage.to_dict(),
        }


@dataclass(frozen=True)
class Gap:
    """A stretch in which a device did nothing."""

    device: str
    kind: str
    """`between runs` or `inside runs`."""
    start_s: float
    duration_s: float
    host_activity: str
    """What the host did for the longest part of it; empty where the trace does not tell."""


@dataclass(frozen=True)
class GapRow:
    """All gaps of one kind."""

    kind: str
    total_s: float
    num_gaps: int
    largest_s: float


@dataclass(frozen=True)
class GapTable:
    """When the devices did nothing."""

    rows: tuple[GapRow, ...]
    largest: tuple[Gap, ...]
    coverage: Coverage

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "largest": [asdict(gap) for gap in self.largest],
            "coverage": self.coverage.to_dict(),
        }


@dataclass(frozen=True)
class StepMarker:
    """A `jax.profiler.StepTraceAnnotation`: where the host was in a step."""

    name: str
    step: int
    start_s: float
    end_s: float
    host: int = 0
    """Which file of the session."""
    num_steps: int | None = field(default=None)
    """How many steps the marked call makes, where the marker tells (`StepTraceAnnotation(..., num_steps=n)`)."""


@dataclass(frozen=True)
class StepTime:
    """The time from the start of one step to the start of the next, per step."""

    mean_s: float
    median_s: float
    p95_s: float
    num_intervals: int


def source_text(frame: Frame | None) -> str:
    """`file:line`, empty for none."""
    return f"{frame.file}:{frame.line}" if frame else ""


def longest_first(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows by their busy time."""
    return tuple(sorted(rows, key=lambda row: row.busy_s, reverse=True))  # pyright: ignore[reportAttributeAccessIssue]
