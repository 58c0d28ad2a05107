"""The tables of a trace report. Times are seconds of device time, summed over the devices; shares are of busy time.

Every field has a default, for reports that an earlier version wrote without it.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from trackside.trace.hlo import Frame

Row = TypeVar("Row")
NO_SCOPE = "(no scope)"
_RUN_COLUMNS = {
    **dict.fromkeys(("run_id", "step", "num_steps"), np.int64),
    **dict.fromkeys(("start_s", "end_s", "busy_s", "idle_s"), np.float64),
}


def _no_column() -> np.ndarray:
    return np.zeros(0)


@dataclass(frozen=True)
class Coverage:
    """How much of the busy time is accounted for."""

    busy_s: float = 0.0
    """The time in which the devices executed operations of the chosen programs."""
    resolved_s: float = 0.0
    """The part that belongs to operations whose metadata says where they come from."""
    inferred_s: float = 0.0
    """What of that belongs to operations without metadata, counted to the operation next to them."""
    scoped_s: float = 0.0
    """The part under a scope of the user's: a `jax.named_scope`, a module's name."""
    estimated_s: float = 0.0
    """What of the resolved time belongs to kernels that compute for several rows of a table: for several scopes or
    phases, in the table by source line for several lines. It is split by what their parts cost, by estimate."""
    unsplit_s: float = 0.0
    """The part that belongs to fused kernels of which the trace does not say what their parts cost. It is shown as one
    kernel over several scopes or, where only one of them is known, under that one."""

    @property
    def unattributed_s(self) -> float:
        """The part of which the trace does not say where it comes from."""
        return max(self.busy_s - self.resolved_s - self.unsplit_s, 0.0)

    @property
    def estimated_share(self) -> float | None:
        """`estimated_s` as a share of the busy time; None if there was none."""
        return self.estimated_s / self.busy_s if self.busy_s else None

    @property
    def unsplit_share(self) -> float | None:
        """`unsplit_s` as a share of the busy time; None if there was none."""
        return self.unsplit_s / self.busy_s if self.busy_s else None

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
            "estimated_share": self.estimated_share,
            "unsplit_share": self.unsplit_share,
        }


@dataclass(frozen=True)
class Table(Generic[Row]):
    """Rows, the longest time first, and how much of the busy time is accounted for."""

    rows: tuple[Row, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)

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

    scope: str = NO_SCOPE
    """The path, such as `loss/Net/Dense_0`; `(no scope)` for what is under none."""
    phase: str = "other"
    busy_s: float = 0.0
    share: float = 0.0
    num_ops: int = 0
    """How many operations were executed; a fused kernel counts in each scope that it computes for."""
    estimated_s: float = 0.0
    """What of the time is its part of kernels that compute for several scopes or phases, by estimate."""


@dataclass(frozen=True)
class OpRow:
    """The time of one operation of a program, over all its executions."""

    op: str = ""
    program: str = ""
    opcode: str = ""
    category: str = ""
    scope: str = NO_SCOPE
    """For a fused kernel, that of the operation it is named after."""
    phase: str = "other"
    source: str = ""
    """`file:line`, empty where it is not known."""
    busy_s: float = 0.0
    share: float = 0.0
    num_ops: int = 0
    num_scopes: int = 1
    """For how many scopes it computes: more than 1 if its time is split among them."""


@dataclass(frozen=True)
class CategoryRow:
    """The time of one kind of operations."""

    category: str = ""
    busy_s: float = 0.0
    share: float = 0.0
    num_ops: int = 0


@dataclass(frozen=True)
class SourceRow:
    """The time that a line of the user's source causes."""

    file: str = ""
    line: int = 0
    function: str = ""
    busy_s: float = 0.0
    share: float = 0.0
    num_ops: int = 0
    estimated_s: float = 0.0
    """What of the time is its part of kernels that compute for several lines, by estimate."""


@dataclass(frozen=True)
class CollectiveRow:
    """The time of one collective operation."""

    op: str = ""
    opcode: str = ""
    scope: str = NO_SCOPE
    busy_s: float = 0.0
    """Its share of the wall, as in the other tables."""
    span_s: float = 0.0
    """From its start to its end, other operations beside it included."""
    share: float = 0.0
    num_ops: int = 0
    num_bytes: int | None = None
    """What one device puts into one execution; None where the trace does not tell."""


@dataclass(frozen=True)
class TransferRow:
    """Copies that run beside the operations and are no part of the busy time."""

    name: str = ""
    span_s: float = 0.0
    num_ops: int = 0


@dataclass(frozen=True)
class ProgramRow:
    """A program that ran in the window."""

    name: str = ""
    busy_s: float = 0.0
    num_runs: int | None = None
    """How often it was executed, on all devices; None where the trace does not tell."""
    is_selected: bool = True
    """Whether the tables hold it."""


@dataclass(frozen=True)
class DeviceRow:
    """How busy a device was between the first start and the last end of the chosen programs' executions."""

    name: str = ""
    window_s: float = 0.0
    busy_s: float = 0.0

    @property
    def idle_s(self) -> float:
        """The rest of the window."""
        return self.window_s - self.busy_s


@dataclass(frozen=True, eq=False)
class RunTable:
    """The executions of the chosen programs, by device and start. One entry per execution in each column."""

    program: tuple[str, ...] = ()
    device: tuple[str, ...] = ()
    run_id: np.ndarray = field(default_factory=_no_column)
    step: np.ndarray = field(default_factory=_no_column)
    """The first step that it made; -1 where no step marker tells."""
    num_steps: np.ndarray = field(default_factory=_no_column)
    """How many steps it made: more than one where a call makes several."""
    start_s: np.ndarray = field(default_factory=_no_column)
    """Since the first event of the trace."""
    end_s: np.ndarray = field(default_factory=_no_column)
    busy_s: np.ndarray = field(default_factory=_no_column)
    """Its share of the device's busy time."""
    idle_s: np.ndarray = field(default_factory=_no_column)
    """Time between its start and its end in which the device did nothing."""
    coverage: Coverage = field(default_factory=Coverage)

    def __post_init__(self) -> None:
        for name, dtype in _RUN_COLUMNS.items():
            try:
                with np.errstate(invalid="raise"):
                    column = np.asarray(getattr(self, name), dtype)
            except FloatingPointError as error:
                raise ValueError(f"{name} has a number that is no {np.dtype(dtype).name}") from error
            if column.shape != (len(self.program),):
                raise ValueError(f"{name} has the shape {column.shape} for {len(self.program)} executions")
            object.__setattr__(self, name, column)  # read back from JSON it was a list
        if len(self.device) != len(self.program):
            raise ValueError(f"{len(self.device)} devices are given for {len(self.program)} executions")

    def __len__(self) -> int:
        return len(self.run_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunTable) and self.to_dict() == other.to_dict()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "program": list(self.program),
            "device": list(self.device),
            **{name: getattr(self, name).tolist() for name in _RUN_COLUMNS},
            "coverage": self.coverage.to_dict(),
        }


@dataclass(frozen=True)
class Gap:
    """A stretch in which a device did nothing."""

    device: str = ""
    kind: str = ""
    """`between runs` or `inside runs`."""
    start_s: float = 0.0
    duration_s: float = 0.0
    host_activity: str = ""
    """What the host did for the longest part of it; empty where the trace does not tell."""


@dataclass(frozen=True)
class GapRow:
    """All gaps of one kind."""

    kind: str = ""
    total_s: float = 0.0
    num_gaps: int = 0
    largest_s: float = 0.0


@dataclass(frozen=True)
class GapTable:
    """When the devices did nothing."""

    rows: tuple[GapRow, ...] = ()
    largest: tuple[Gap, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)

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

    name: str = ""
    step: int = 0
    start_s: float = 0.0
    end_s: float = 0.0
    host: int = 0
    """Which file of the session."""
    num_steps: int | None = None
    """How many steps the marked call makes, where the marker tells (`StepTraceAnnotation(..., num_steps=n)`)."""


@dataclass(frozen=True)
class StepTime:
    """The time from the start of one step to the start of the next, per step."""

    mean_s: float = 0.0
    median_s: float = 0.0
    p95_s: float = 0.0
    num_intervals: int = 0


def source_text(frame: Frame | None) -> str:
    """`file:line`, empty for none."""
    return f"{frame.file}:{frame.line}" if frame else ""


def longest_first(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows by their busy time."""
    return tuple(sorted(rows, key=lambda row: row.busy_s, reverse=True))  # pyright: ignore[reportAttributeAccessIssue]
