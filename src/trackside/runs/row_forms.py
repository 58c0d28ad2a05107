"""What the rows of an event file must look like for those who read them, by kind.

Rows are checked once, where they come in, so that nothing behind it has to expect a list where a number belongs. Only
fields that something reads are checked; what an earlier version did not write may be missing.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

Step = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | float
_NumbersByName = dict[str, Number | None]


class _Form(msgspec.Struct, gc=False):
    """The fields of all rows."""

    t: Number


class _Format(_Form):
    version: Step


class _Leg(_Form):
    step: Step
    leg: Step | None = None
    epoch: Step | None = None
    goal: Number | None = None


class _LegEnd(_Form):
    step: Step | None = None
    epoch: Step | None = None
    train_time_s: Number | None = None
    goodput: Number | None = None


class _Status(_Form):
    status: str | None = None
    step: Step | None = None
    epoch: Step | None = None


class _Change(msgspec.Struct, gc=False):
    path: str
    kind: str
    old: str
    new: str


class _Compile(_Form):
    function: str
    step: Step | None = None
    trace_s: Number | None = None
    lower_s: Number | None = None
    compile_s: Number | None = None
    changes: list[_Change] | None = None
    suggestion: str | None = None
    num_recompiles: Step | None = None
    cache: str | None = None
    thread: str | int | None = None


class _Capture(_Form):
    path: str
    first_step: Step
    last_step: Step
    session: str | None = None
    reason: str | None = None
    error: str | None = None
    disturbed_steps: tuple[Step, Step] | None = None
    warnings: list[str] | None = None
    utilisation: Number | None = None
    utilisation_range: tuple[Number, Number] | None = None
    report: dict[str, Any] | None = None


class _Memory(_Form):
    step: Step | None = None
    memory: dict[str, _NumbersByName] | None = None
    host: _NumbersByName | None = None
    live: dict[str, Number] | None = None


class _MemoryLeak(_Form):
    name: str
    step: Step | None = None
    bytes_per_step: Number | None = None
    since_step: Step | None = None


class _Checkpoint(_Form):
    step: Step | None = None
    path: str | None = None


class _Profiling(_Form):
    operations: dict[str, dict[str, Any]] | None = None


class _BetweenEpochs(_Form):
    epoch: Step
    parts: dict[str, Number]


class _FirstStep(_Form):
    wall_s: Number
    parts: dict[str, Number]
    step: Step | None = None


class _Ledger(_Form):
    leg: Step | None = None
    step: Step | None = None
    step_time_s: Number | None = None
    longest_s: dict[str, Number] | None = None
    wall_s: Number | None = None
    parts: dict[str, Number] | None = None
    num_steps: Step | None = None
    num_samples: Step | None = None
    num_tokens: Step | None = None
    gc_s: Number | None = None
    device_busy_s: Number | None = None
    device_idle_s: Number | None = None
    idle_by_reason: dict[str, Number] | None = None
    at_peak_s: Number | None = None
    outside_s: Number | None = None
    device_idle_low_s: Number | None = None
    device_idle_high_s: Number | None = None
    at_peak_range_s: tuple[Number, Number] | None = None


class _Processors(_Form):
    wall_s: Number
    own_s: Number
    other_s: Number
    num_processors: Step


class _Environment(_Form):
    hostname: str | None = None
    backend: str | None = None
    python: str | None = None
    platform: str | None = None
    devices: list[Any] | None = None
    versions: dict[str, Any] | None = None
    git: dict[str, Any] | None = None
    loaders: dict[str, dict[str, Any]] | None = None
    command: list[str] | None = None


class _Config(_Form):
    config: dict[str, Any] | None = None


class _LoggingTool(_Form):
    tool: str
    num_waiting: Step | None = None
    num_dropped: Step | None = None
    closing_s: Number | None = None


class _Silence(_Form):
    findings: list[str]


class _FindingRow(_Form):
    id: str
    severity: str
    title: str
    advice: str
    evidence: dict[str, Number | str]
    subject: str | None = None


_FORMS: dict[str, type[_Form]] = {
    "between_epochs": _BetweenEpochs,
    "capture": _Capture,
    "checkpoint": _Checkpoint,
    "compile": _Compile,
    "config": _Config,
    "environment": _Environment,
    "finding": _FindingRow,
    "first_step": _FirstStep,
    "format": _Format,
    "ledger": _Ledger,
    "leg": _Leg,
    "leg_end": _LegEnd,
    "logging_tool": _LoggingTool,
    "memory": _Memory,
    "memory_leak": _MemoryLeak,
    "processors": _Processors,
    "profiling": _Profiling,
    "silence": _Silence,
    "status": _Status,
}


def check_row(row: Mapping[str, Any]) -> None:
    """Refuse a row that nothing could be done with.

    Args:
        row: The row. One of a kind that nothing reads needs a time only.

    Raises:
        ValueError: It lacks a field that its kind must have, or has a value of the wrong type in one.
    """
    msgspec.convert(row, _FORMS.get(row["kind"], _Form))
