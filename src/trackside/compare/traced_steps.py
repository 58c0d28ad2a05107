"""A captured window, step by step: the device time of each scope and operation in each of its steps.

The tables of a trace report hold sums over the window. How sure a difference is can be told from single steps only.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trackside.trace.analyse import Analysis, read_analysis
from trackside.trace.hlo import HloModule
from trackside.trace.ops import OpInfo
from trackside.trace.peak_memory import PeakMemory, peak_memory
from trackside.trace.tables import NO_SCOPE
from trackside.trace.trace_report import TraceReport
from trackside.trace.xspace import PS_PER_S

_NUMBER = re.compile(r"(\.\d+|\.clone|\.remat\d*)+$")

Key = tuple[str, ...]


@dataclass(frozen=True)
class PerStep:
    """Seconds of device time per step."""

    mean_s: float
    samples: np.ndarray | None = None
    """One entry per execution of the step, in order; None where the steps are not known one by one."""


@dataclass(frozen=True)
class TracedSteps:
    """What two captured windows are compared by."""

    source: str
    """Where it was read from."""
    step_program: str | None
    num_steps: int | None
    scopes: Mapping[Key, PerStep]
    """By scope path and phase."""
    ops: Mapping[Key, PerStep]
    """By operation without its number, scope path and phase."""
    step_s: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """From the start of each step to that of the next."""
    module: HloModule | None = field(default=None, repr=False)
    """The program of the step, where the trace holds it."""
    flops: Mapping[Key, float] = field(default_factory=dict)
    """FLOPs per step by scope path and phase, where they were counted."""
    peak_bytes: Mapping[str, float] = field(default_factory=dict)
    """The program's memory: by what it holds."""


def read_traced_steps(source: str | Path, program: str | None = None, marked_only: bool = False) -> TracedSteps:
    """Read a captured window.

    Args:
        source: A `*.xplane.pb` file or a directory; see `trackside.trace.analyse_trace`.
        program: Whose executions to look at; the program of the steps if left out.
        marked_only: See `trackside.trace.analyse_trace`.

    Raises:
        TraceError: If there is no trace, or it cannot be read.
    """
    analysis = read_analysis(source, program=program, marked_only=marked_only)
    report = analysis.report
    module = report.modules.get(report.step_program or "")
    scope_s, op_s = _sum_by_step(analysis)
    return TracedSteps(
        source=str(source),
        step_program=report.step_program,
        num_steps=report.num_steps,
        scopes=scope_s,
        ops=op_s,
        step_s=_step_seconds(report),
        module=module,
        peak_bytes=_memory_figures(None if module is None else peak_memory(module.proto)),
    )


def traced_steps_from_report(report: TraceReport, source: str) -> TracedSteps | None:
    """What is known about a captured window whose trace is gone; None if its steps are not known.

    Args:
        report: The tables that the run kept.
        source: Where the trace was.
    """
    if report.per_step(0.0) is None:
        return None
    return TracedSteps(
        source=source,
        step_program=report.step_program,
        num_steps=report.num_steps,
        scopes=_mean_per_step(report, (((row.scope, row.phase), row.busy_s) for row in report.scopes)),
        ops=_mean_per_step(report, (((plain_name(row.op), row.scope, row.phase), row.busy_s) for row in report.ops)),
        step_s=_step_seconds(report),
        flops=flops_by_scope(report),
        peak_bytes=_memory_figures(report.peak_memory),
    )


def _mean_per_step(report: TraceReport, times: Iterable[tuple[Key, float]]) -> dict[Key, PerStep]:
    sums: dict[Key, float] = defaultdict(float)
    for key, busy_s in times:
        sums[key] += report.per_step(busy_s) or 0.0
    return {key: PerStep(mean_s) for key, mean_s in sums.items()}


def flops_by_scope(report: TraceReport) -> dict[Key, float]:
    """FLOPs per step by scope path and phase; empty if they were not counted."""
    sums: dict[Key, float] = defaultdict(float)
    for row in () if report.flops is None else report.flops.rows:
        sums["/".join(row.scope) or NO_SCOPE, row.phase] += row.flops
    return dict(sums)


def plain_name(op: str) -> str:
    """An operation's name without the number that the compiler gave it."""
    return _NUMBER.sub("", op)


def _memory_figures(memory: PeakMemory | None) -> dict[str, float]:
    if memory is None:
        return {}
    figures = {"arguments": memory.parameter_bytes, "temporaries": memory.temporary_bytes}
    return {**figures, "outputs": memory.output_bytes}


def _step_seconds(report: TraceReport) -> np.ndarray:
    """From the start of each step to that of the next, on the first device that made them."""
    runs = report.runs
    chosen = [index for index, name in enumerate(runs.program) if name == report.step_program]
    chosen = [index for index in chosen if runs.device[index] == runs.device[chosen[0]]]
    starts, num_steps = runs.start_s[chosen], np.maximum(runs.num_steps[chosen], 1)
    return np.diff(starts) / num_steps[:-1] if len(starts) > 1 else np.zeros(0)


def _sum_by_step(analysis: Analysis) -> tuple[dict[Key, PerStep], dict[Key, PerStep]]:
    """Device time by scope and by operation, in each execution of the step's program."""
    ops, runs, num_keys = analysis.ops, analysis.runs, len(analysis.infos)
    step_runs = np.flatnonzero(analysis.is_step_run)
    position = np.full(len(runs) + 1, -1)
    position[step_runs] = np.arange(len(step_runs))
    of_step = position[runs.of_event]  # events of no execution have -1, which is the last entry: none
    known = np.flatnonzero(of_step >= 0)
    cells = of_step[known] * num_keys + ops.key[known]
    times = np.bincount(cells, weights=analysis.share_ps[known], minlength=len(step_runs) * num_keys)
    times = times.reshape(len(step_runs), num_keys) / PS_PER_S
    steps_per_run = max(_mean_steps(analysis), 1.0)
    scope_sums: dict[Key, np.ndarray] = {}
    op_sums: dict[Key, np.ndarray] = {}
    for index in np.flatnonzero(times.any(axis=0)).tolist():
        info: OpInfo = analysis.infos[index]
        per_step = times[:, index] / steps_per_run
        for part in info.parts:
            _add(scope_sums, ("/".join(part.scope) or NO_SCOPE, part.phase), per_step * part.share)
        _add(op_sums, (plain_name(info.name), "/".join(info.scope) or NO_SCOPE, info.phase), per_step)

    def samples(sums: dict[Key, np.ndarray]) -> dict[Key, PerStep]:
        return {key: PerStep(float(values.mean()), values) for key, values in sums.items()}

    return samples(scope_sums), samples(op_sums)


def _add(sums: dict[Key, np.ndarray], key: Key, values: np.ndarray) -> None:
    sums[key] = sums.get(key, 0.0) + values


def _mean_steps(analysis: Analysis) -> float:
    """How many steps an execution makes."""
    num_steps = analysis.steps.num_steps[analysis.is_step_run]
    return float(num_steps.mean()) if len(num_steps) else 1.0
