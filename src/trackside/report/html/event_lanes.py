"""What happened at which step: compiles, checkpoints, validations, captures and restarts."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from trackside.findings.compile_rules import compile_time_s
from trackside.runs import Run
from trackside.text import chart_label, count, seconds

COLOURS = {
    "recompile": "--severe",
    "compile": "--part-compile",
    "validation": "--part-validation",
    "checkpoint": "--part-checkpointing",
    "capture": "--part-callbacks",
    "restart": "--warning",
}
SYMBOLS = {
    "recompile": "diamond",
    "compile": "diamond",
    "validation": "line-ns-open",
    "checkpoint": "square",
    "capture": "circle",
    "restart": "triangle-right",
}
_MAX_MARKS = 300


class Mark(NamedTuple):
    """Something that happened at a step."""

    step: int
    text: str
    """What plotly shows; already escaped."""


def lanes(run: Run) -> dict[str, list[Mark]]:
    """What happened, by kind, in the order of display. A kind that never happened is empty."""
    compiles = [row for row in run.compiles if row.get("step") is not None and not row.get("is_operation")]
    found = {
        "recompile": [_compile_mark(row) for row in compiles if row.get("num_recompiles")],
        "compile": [_compile_mark(row) for row in compiles if not row.get("num_recompiles")],
        "validation": _validations(run),
        "checkpoint": [
            Mark(row["step"], f"checkpoint of step {row['step']:,}")
            for row in run.checkpoints
            if row.get("step") is not None
        ],
        "capture": [_capture_mark(row) for row in run.captures],
        "restart": [
            Mark(leg.first_step, f"leg {leg.number} resumed from step {leg.first_step:,}") for leg in run.legs[1:]
        ],
    }
    return {kind: _thinned(kind, marks) for kind, marks in found.items()}


def _compile_mark(row: dict[str, Any]) -> Mark:
    again = "recompiled" if row.get("num_recompiles") else "compiled"
    change = next(iter(row.get("changes") or ()), None)
    why = f": {change['path']} {change['kind']} {change['old']} → {change['new']}" if change else ""
    text = f"{row.get('function')} {again} at step {row['step']:,} in {seconds(compile_time_s(row))}{why}"
    return Mark(row["step"], chart_label(text, 160))


def _validations(run: Run) -> list[Mark]:
    table = run.metrics.get("val")
    steps: Iterable[int] = [] if table is None else np.unique(table.step).tolist()
    return [Mark(step, f"validation after step {step:,}") for step in steps]


def _capture_mark(row: dict[str, Any]) -> Mark:
    return Mark(
        row["first_step"],
        chart_label(f"capture of steps {row['first_step']:,} to {row['last_step']:,}: {row.get('reason')}"),
    )


def _thinned(kind: str, marks: list[Mark]) -> list[Mark]:
    """Few enough marks to draw; those that would overlap become one with their number."""
    if len(marks) <= _MAX_MARKS:
        return marks
    groups = np.array_split(np.arange(len(marks)), _MAX_MARKS)
    thinned = []
    for group in groups:
        first, last = marks[group[0]], marks[group[-1]]
        text = f"{count(len(group), kind)} between steps {first.step:,} and {last.step:,}"
        thinned.append(first if len(group) == 1 else Mark(first.step, text))
    return thinned
