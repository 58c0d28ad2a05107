"""One side of a comparison: what is known of a run, or of a captured window, in the form that both are compared by."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from trackside.compare.disturbance import StepSeries
from trackside.compare.traced_steps import TracedSteps, flops_by_scope, read_traced_steps, traced_steps_from_report
from trackside.errors import ConfigError
from trackside.profiling.first_step import TimeToFirstStep
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.runs import MetricTable, Run, open_run
from trackside.runs.run_axes import RunAxes
from trackside.runs.run_folders import holds_runs, process_index_of
from trackside.trace import TraceError
from trackside.trace.capture_row import analysed_captures

RunOrPath = Run | str | os.PathLike[str]

MAX_IN_FLIGHT = 4
"""At most this many steps are found complete at the same moment, where the loop waits for all of them."""


@dataclass(frozen=True)
class Side:
    """What is known of one of two runs. What was not measured is empty or None."""

    name: str
    """What it is called: its folder's name, with as many folders above it as tell the two sides apart."""
    path: str
    kind: str
    """`run` or `trace`."""
    steps: StepSeries
    """The times of steps that nothing disturbed but the machine."""
    num_steps: int = 0
    ledger: LedgerTotals | None = None
    time_to_first_step: TimeToFirstStep | None = None
    time_rows: MetricTable | None = None
    """Where the time went, from row to row."""
    trace: TracedSteps | None = None
    memory: Sequence[Mapping[str, Any]] = ()
    compiles: Sequence[Mapping[str, Any]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, MetricTable] = field(default_factory=dict)
    """By mode."""
    axes: RunAxes = field(default_factory=lambda: RunAxes(0.0))
    """The time of its rows."""
    notes: tuple[str, ...] = ()
    """What could not be read, without the side's name."""

    def to_dict(self) -> dict[str, Any]:
        """Which run it is, as plain values."""
        return {
            "name": self.name,
            "path": self.path,
            "kind": self.kind,
            "num_steps": self.num_steps,
            "batch_size": self.steps.batch_size,
            "time_to_first_step": None if self.time_to_first_step is None else self.time_to_first_step.to_dict(),
            "capture": None if self.trace is None else self.trace.source,
        }


def read_sides(before: RunOrPath, after: RunOrPath) -> tuple[Side, Side]:
    """Read two runs, or two captured windows.

    Raises:
        ConfigError: One is a run and the other a trace.
        RunError: A run cannot be found or read.
        TraceError: A trace cannot be found or read.
    """
    sides = read_side(before), read_side(after)
    if sides[0].kind != sides[1].kind:
        run, trace = sorted(sides, key=lambda side: side.kind)
        raise ConfigError(
            f"{run.path} is a run and {trace.path} a trace; compare two runs or two traces. A run's own captures are "
            "below its tensorboard folder"
        )
    return _told_apart(*sides)


def _told_apart(before: Side, after: Side) -> tuple[Side, Side]:
    """The sides as they are, or where they are called the same, named with the folders that they are in."""
    if before.name != after.name:
        return before, after
    first, second = (Path(side.path).resolve().parts for side in (before, after))
    for num_parts in range(2, max(len(first), len(second)) + 1):
        if first[-num_parts:] != second[-num_parts:]:
            return _renamed(before, first[-num_parts:]), _renamed(after, second[-num_parts:])
    return before, after  # one run, compared with itself


def _renamed(side: Side, parts: Sequence[str]) -> Side:
    name = PurePath(*parts).as_posix()
    return replace(side, name=name, steps=replace(side.steps, name=name))


def read_side(source: RunOrPath) -> Side:
    """Read a run, or a captured window.

    Raises:
        RunError: A run cannot be found or read.
        TraceError: A trace cannot be found or read.
    """
    if isinstance(source, Run):
        return _side_of_run(source)
    path = Path(source)
    if is_run(path) or not path.exists():
        return _side_of_run(open_run(path))
    try:
        return _side_of_trace(path)
    except TraceError:
        if holds_runs(path):
            open_run(path)  # which names them
        raise


def is_run(path: Path) -> bool:
    """Whether a path is a run's folder or one of its event files."""
    if path.is_dir():
        return any(process_index_of(entry) is not None for entry in path.iterdir())
    return process_index_of(path) is not None


def _side_of_trace(path: Path) -> Side:
    trace = read_traced_steps(path)
    step_s = trace.step_s[trace.step_s > 0]
    return Side(
        name=path.name,
        path=str(path),
        kind="trace",
        steps=StepSeries(path.name, step_s, np.ones(len(step_s), np.int64)),
        num_steps=trace.num_steps or 0,
        trace=trace,
    )


def _side_of_run(run: Run) -> Side:
    times, ledger = run.step_times, run.ledger
    trace, notes = _last_capture(run)
    # A step of no time at all was noticed late, together with the next: it says nothing, and has no logarithm.
    clean = times.clean & _is_inside(run) & (times.seconds > 0)
    is_counted = ledger is not None and ledger.num_steps and ledger.num_samples
    batch_size = ledger.num_samples / ledger.num_steps if ledger is not None and is_counted else None
    return Side(
        name=run.name,
        path=str(run.path),
        kind="run",
        steps=StepSeries(
            run.name,
            times.seconds[clean],
            times.num_steps[clean],
            int((~clean).sum()),
            batch_size,
            run.processor_use,
        ),
        num_steps=run.step,
        ledger=ledger,
        time_to_first_step=run.time_to_first_step,
        time_rows=run.metrics.get("time"),
        trace=trace,
        memory=run.memory,
        compiles=[row for row in run.compiles if not row.get("is_operation")],
        config=run.config,
        environment=run.environment,
        metrics=run.metrics,
        axes=run.axes,
        notes=(*notes, *run.problems),
    )


def _is_inside(run: Run) -> np.ndarray:
    """Which intervals are away from moments at which the loop waits for all steps in flight; all, if too few are.

    Until then it learns about each step a few batches late, and about the last ones at once: with a slow loader, the
    intervals before such a moment look too short by that, and the ones after it too long.
    """
    times = run.step_times
    settled = [np.unique(run.metrics[mode].step) for mode in ("train_epoch", "val", "test") if mode in run.metrics]
    settled += [np.array([row["step"] for row in rows if row.get("step")]) for rows in (run.checkpoints, run.memory)]
    settled += [np.array([capture.first_step - 1, capture.last_step]) for capture in run.captures]
    moments = np.unique(np.concatenate([np.zeros(1), *settled]))
    # The last such moment before the end of each interval, and the first one from there on.
    after = np.searchsorted(moments, times.step, side="left")
    distance_before = times.step - times.num_steps - moments[np.maximum(after - 1, 0)]
    distance_after = np.append(moments, np.inf)[after] - times.step
    is_inside = (distance_before >= MAX_IN_FLIGHT) & (distance_after >= MAX_IN_FLIGHT)
    enough = (is_inside & times.clean).sum() >= 0.5 * times.clean.sum()
    return is_inside if enough else np.ones(len(times), bool)


def _last_capture(run: Run) -> tuple[TracedSteps | None, list[str]]:
    """The last capture that worked: from its trace, or from the tables that the run kept if the trace is gone."""
    analysed = analysed_captures(run.captures)
    if not analysed:
        return None, []
    capture, report = analysed[-1]
    try:
        trace = read_traced_steps(capture.path, program=report.step_program, marked_only=True)
    except TraceError as error:
        kept = traced_steps_from_report(report, capture.path)
        return kept, [f"only the tables of its capture are left, which give no intervals ({error})"]
    return replace(trace, flops=flops_by_scope(report)), []
