"""Measurements as a run could have made them."""

from typing import Any

from trackside.findings import EpochFacts, RunFacts
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.trace import TraceReport
from trackside.trace.tables import Coverage, ScopeRow, Table


def make_ledger(
    parts: dict[str, float],
    wall_s: float = 100.0,
    num_steps: int = 1000,
    busy_s: float | None = None,
    idle: dict[str, float] | None = None,
    gc_s: float = 0.0,
) -> LedgerTotals:
    """Totals whose rest of the wall is `device_wait`. The device is observed where `busy_s` is given."""
    parts = {"compile": 0.0, **parts}
    parts["device_wait"] = wall_s - sum(parts.values())
    idle = idle or {}
    idle_s = None if busy_s is None else sum(idle.values())
    return LedgerTotals(
        wall_s, parts, num_steps, gc_s=gc_s, device_busy_s=busy_s, device_idle_s=idle_s, idle_by_reason=idle
    )


def run_with(parts: dict[str, float], log_every_n_steps: int | None = None, **ledger: Any) -> RunFacts:
    """A run of 100 seconds and 1000 steps, unless told otherwise."""
    return RunFacts(ledger=make_ledger(parts, **ledger), log_every_n_steps=log_every_n_steps)


def compile_row(function: str = "train_step", step: int | None = 1, num_recompiles: int = 0, **fields: Any) -> dict:
    """A row as the recompile sentinel writes it, of a compile that took a second."""
    row = {
        "kind": "compile",
        "function": function,
        "step": step,
        "trace_s": 0.2,
        "lower_s": 0.1,
        "compile_s": 0.7,
        "cache": "off",
        "changes": [],
        "num_changes": 0,
        "suggestion": "",
        "num_recompiles": num_recompiles,
        "is_operation": False,
        "thread": "MainThread",
    }
    return {**row, **fields}


def change(old: str, new: str, path: str = "batch.inputs", kind: str = "shape") -> dict[str, str]:
    return {"path": path, "kind": kind, "old": old, "new": new}


def capture_row(phases: dict[str, float], num_steps: int | None = 10, resolved: float = 1.0, **fields: Any) -> dict:
    """A row of a capture whose phases took some seconds each, in one scope."""
    busy_s = sum(phases.values())
    scopes = tuple(ScopeRow("net", phase, phase_s, phase_s / busy_s, 1) for phase, phase_s in phases.items())
    coverage = Coverage(busy_s, resolved * busy_s, 0.0, busy_s)
    report = TraceReport(num_steps=num_steps, scopes=Table(scopes, coverage), coverage=coverage)
    return {"kind": "capture", "error": None, "report": report.to_dict(), **fields}


def leak_row(name: str = "other live arrays", bytes_per_step: float = 6.4) -> dict[str, Any]:
    return {"kind": "memory_leak", "step": 300, "name": name, "bytes_per_step": bytes_per_step, "since_step": 20}


def timer(avg_time: float, count: int = 100) -> dict[str, Any]:
    return {"avg_time": avg_time, "total_time": avg_time * count, "count": count}


def epochs_with(idle_s: float | None, number: int = 4, time_s: float = 10.0, reason: str = "data_wait") -> RunFacts:
    epochs = [EpochFacts(index + 1, 100 * (index + 1), time_s, idle_s, reason) for index in range(number)]
    return RunFacts(ledger=make_ledger({}), epochs=epochs)


def first(found):
    """What a rule found, if anything; the first of several."""
    return next(iter(found), None) if hasattr(found, "__iter__") else found
