"""The summary of a model as a table for the terminal."""

import io
import textwrap
from typing import TYPE_CHECKING

import rich.box
import rich.console
from rich.table import Table
from rich.text import Text

from trackside.text import count, num_bytes, percent, tail, with_prefix, wrap

if TYPE_CHECKING:
    from trackside.trainer.model_summary import ModelSummary, ModuleRow

_NAME_WIDTH = 36
_UNKNOWN = "?"


def render_summary(summary: "ModelSummary", width: int = 110) -> str:
    """The modules with their figures, the totals, and what to know of them.

    Args:
        summary: The summary.
        width: The columns to use.
    """
    console = rich.console.Console(file=io.StringIO(), width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(_table(summary))
    lines = [line.rstrip() for line in textwrap.dedent(captured.get()).splitlines() if line.strip()]
    return "\n".join([*lines, "", *_totals(summary), *_notes(summary, width)])


def _table(summary: "ModelSummary") -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("module")
    for heading in ("parameters", "bytes", "forward", "step", "share", "saved"):
        table.add_column(heading, justify="right")
    for row in summary.rows:
        share = _share(row, summary.total)
        figures = (num_bytes(row.param_bytes), _flops(row.forward_flops), _flops(row.step_flops), share)
        saved = _UNKNOWN if row.saved_bytes is None else num_bytes(row.saved_bytes)
        name = tail("  " * row.depth + row.name, _NAME_WIDTH)
        table.add_row(*map(Text, (name, f"{row.num_params:,}", *figures, saved)))  # names may look like markup
    return table


def _flops(number: int | None) -> str:
    return _UNKNOWN if number is None else with_prefix(number, "FLOP") if number else "0"


def _share(row: "ModuleRow", total: "ModuleRow") -> str:
    if row.step_flops is None or not total.step_flops:
        return _UNKNOWN if row.step_flops is None else ""
    return percent(row.step_flops / total.step_flops) if row.step_flops else ""


def _totals(summary: "ModelSummary") -> list[str]:
    total = summary.total
    devices = f" on {count(summary.num_devices, 'device')}" if summary.num_devices > 1 else ""
    lines = [
        f"{total.num_params:,} parameters, {num_bytes(total.param_bytes)}; with the optimizer's state and the like "
        f"{num_bytes(summary.state_bytes_per_device)} per device"
    ]
    if total.step_flops is not None:
        optimizer = f", {_flops(summary.optimizer_flops)} in the optimizer" if summary.optimizer_flops else ""
        lines.append(
            f"a step on {count(summary.batch_size, 'example')}{devices}: {_flops(total.step_flops)} in matrix products "
            f"and convolutions{optimizer}; {_flops(total.other_flops)} in all else"
        )
    return lines


def _notes(summary: "ModelSummary", width: int) -> list[str]:
    notes = list(summary.notes)
    if summary.total.saved_bytes is not None:
        notes.insert(0, "saved: what the backward pass uses of the forward pass, before the compiler has its say")
    if any(row.step_flops is None for row in summary.rows) and summary.total.step_flops is not None:
        notes.append(f"{_UNKNOWN}: no operation runs under the module's name")
    return [line for note in notes for line in wrap(f"- {note}", width, hanging="  ")]
