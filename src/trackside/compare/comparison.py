"""Two runs compared: what got slower, how certain that is, what changed, and how well each model did."""

import os
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import RenderableType

from trackside.compare.difference import Cause, Difference
from trackside.compare.disturbance import StepSeries
from trackside.compare.metric_changes import MetricChange, metric_changes
from trackside.compare.program_causes import program_causes
from trackside.compare.run_causes import run_causes
from trackside.compare.sections import (
    compile_differences,
    ledger_differences,
    memory_differences,
    op_differences,
    scope_differences,
)
from trackside.compare.sides import Side, read_sides
from trackside.compare.undisturbed_step import StepTimeChange, compare_step_times
from trackside.errors import ConfigError
from trackside.profiling.ledger_text import part_name
from trackside.profiling.ledger_totals import COMPILE
from trackside.runs import Run

FORMAT = "trackside.compare/1"
"""What the plain form of a comparison is called; the number rises when a field changes its meaning or goes away."""
SEED = 0
"""The same two runs give the same intervals each time."""

_SHARE = re.compile(r"\s*([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*(%?)\s*")


@dataclass(frozen=True)
class Comparison:
    """What two runs differ in. Made by `compare_runs`."""

    before: Side
    after: Side
    step_time: StepTimeChange
    parts: tuple[Difference, ...]
    """Seconds per step by part of the ledger."""
    scopes: tuple[Difference, ...]
    """Seconds of device time per step by scope and phase."""
    ops: tuple[Difference, ...]
    """Seconds of device time per step by operation, scope and phase."""
    memory: tuple[Difference, ...]
    compiles: tuple[Difference, ...]
    causes: tuple[Cause, ...]
    """What changed in the program and around it, what accounts for most time first."""
    metrics: tuple[MetricChange, ...] = ()
    """Losses and metrics, those that the runs are judged by first."""
    notes: tuple[str, ...] = ()
    """What could not be compared, and why."""
    max_slowdown: float | None = None
    """The share by which steps may take longer; None if no limit was given."""

    @property
    def is_regression(self) -> bool:
        """Whether steps are significantly slower, by more than `max_slowdown`; never without one."""
        return self.max_slowdown is not None and self.step_time.is_beyond(self.max_slowdown)

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        change, verdict = self.step_time.change, self.step_time.verdict
        if verdict == "cannot tell" or change is None:
            return f"cannot tell whether {self.after.name} is slower: {self.step_time.problem or 'no step times'}"
        if verdict == "no difference":
            return f"no difference in step time beyond the noise between {self.before.name} and {self.after.name}"
        how_much = f"{100 * abs(change):.1f} % {'more' if verdict == 'slower' else 'less'} time"
        return f"{self.after.name} takes {how_much} per {self.step_time.per} than {self.before.name}"

    @property
    def main_part(self) -> Difference | None:
        """The part of the ledger that accounts for most of a difference in step time; None if none stands out."""
        if self.step_time.verdict not in ("slower", "faster"):
            return None
        sign = 1.0 if self.step_time.verdict == "slower" else -1.0
        # Compiling is not part of a step. A part without an interval may be it too: short runs have no others.
        found = [one for one in self.parts if one.name != COMPILE and (one.is_significant or one.low is None)]
        largest = max(found, key=lambda one: sign * one.change, default=None)
        return largest if largest is not None and sign * largest.change > 0 else None

    def render(self, width: int = 80) -> RenderableType:
        """For a terminal: a renderable of rich, within `width` columns; a console without colors prints plain text."""
        from trackside.compare.comparison_console import render_comparison

        return render_comparison(self, width)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON and for pages; `format` names the schema and its version."""
        main = self.main_part
        return {
            "format": FORMAT,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "headline": self.headline,
            "verdict": self.step_time.verdict,
            "max_slowdown": self.max_slowdown,
            "is_regression": self.is_regression,
            "step_time": self.step_time.to_dict(),
            "metrics": [one.to_dict() for one in self.metrics],
            "step_times": {"before": _series(self.before.steps), "after": _series(self.after.steps)},
            "main_part": None if main is None else {**main.to_dict(), "text": part_name(main.name)},
            "parts": [one.to_dict() for one in self.parts],
            "scopes": [one.to_dict() for one in self.scopes],
            "ops": [one.to_dict() for one in self.ops],
            "memory": [one.to_dict() for one in self.memory],
            "compiles": [one.to_dict() for one in self.compiles],
            "causes": [cause.to_dict() for cause in self.causes],
            "notes": list(self.notes),
        }


def compare_runs(
    a: Run | str | os.PathLike[str], b: Run | str | os.PathLike[str], *, max_slowdown: float | str | None = None
) -> Comparison:
    """Compare two runs, or two captured windows.

    Args:
        a: The first: a run, its folder or event file; or a trace's folder or `*.xplane.pb` file.
        b: The second, of the same kind; verdicts are about this one.
        max_slowdown: By how much a step of the second may take longer, as a share (0.05) or as text ("5%"), before
            that counts as a regression.

    Raises:
        ConfigError: `max_slowdown` is not a share, or one is a run and the other a trace.
        RunError: A run cannot be found or read.
        TraceError: A trace cannot be found or read.
    """
    limit = None if max_slowdown is None else parse_share(max_slowdown, "max_slowdown")
    before, after = read_sides(a, b)
    rng = np.random.default_rng(SEED)
    causes = [*program_causes(before, after), *run_causes(before, after)]
    return Comparison(
        before=before,
        after=after,
        step_time=compare_step_times(before.steps, after.steps, rng),
        parts=ledger_differences(before, after, rng),
        scopes=scope_differences(before, after, rng),
        ops=op_differences(before, after, rng),
        memory=memory_differences(before, after),
        compiles=compile_differences(before, after),
        causes=tuple(sorted(causes, key=lambda cause: -abs(cause.change_s or 0.0))),
        metrics=metric_changes(before, after),
        notes=(*_unread(before, after), *_missing(before, after)),
        max_slowdown=limit,
    )


def parse_share(value: float | str, argument: str) -> float:
    """A share of 0 or more, given as a number (0.05) or as text ("5%", "0.05").

    Args:
        value: The number or text.
        argument: What to call it in an error.

    Raises:
        ConfigError: It is neither.
    """
    match = _SHARE.fullmatch(value) if isinstance(value, str) else None
    try:
        share = float(match[1]) / (100.0 if match[2] else 1.0) if match else float(value)
    except (TypeError, ValueError):
        share = float("nan")
    if not 0.0 <= share < float("inf"):
        raise ConfigError(f"{argument}: expected a share of 0 or more, such as 0.05 or '5%'; got {value!r}")
    return share


def _unread(before: Side, after: Side) -> list[str]:
    """What could not be read, and of which run."""
    return [f"{side.name}: {note}" for side in (before, after) for note in side.notes]


def _missing(before: Side, after: Side) -> list[str]:
    """What was not compared, and how to get it."""
    runs = [side for side in (before, after) if side.kind == "run"]
    without_capture = " and ".join(side.name for side in runs if side.trace is None)
    without_ledger = " and ".join(side.name for side in runs if side.ledger is None)
    have_set_up = {side.ledger.has_set_up for side in runs if side.ledger is not None}
    notes = []
    if without_capture:
        notes.append(f"no capture in {without_capture} (JaxProfilerConfig): scopes and operations are not compared")
    if without_ledger:
        notes.append(f"no ledger in {without_ledger}: nothing was trained")
    if len(have_set_up) == 2:
        earlier = " and ".join(side.name for side in runs if side.ledger is not None and not side.ledger.has_set_up)
        notes.append(
            f"{earlier} was written by an earlier version, whose ledger has no set-up and counts compiling the "
            "evaluation as validation: compiling is not compared"
        )
    return notes


def _series(steps: StepSeries, max_points: int = 2000) -> dict[str, Any]:
    """Clean step times for a chart: of many neighbors, the mean."""
    size = max(1, -(-len(steps.seconds) // max_points))
    starts = np.arange(0, len(steps.seconds), size)
    if not len(starts):
        return {"num_steps": [], "seconds": []}
    num_steps = np.add.reduceat(steps.num_steps, starts)
    total_s = np.add.reduceat(steps.seconds * steps.num_steps, starts)
    return {"num_steps": num_steps.tolist(), "seconds": (total_s / num_steps).tolist()}
