"""What a run compiled: how long it took, and each recompile with the argument that caused it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trackside.findings.compile_rules import compile_time_s

MAX_RECOMPILES = 100
"""A summary keeps this many recompiles, the last ones: a run that compiles at each step has thousands."""


@dataclass(frozen=True)
class FunctionCompiles:
    """The compiles of one function."""

    function: str
    num_compiles: int
    num_recompiles: int
    seconds: float
    num_cached: int
    """How many of them were in the compilation cache."""


@dataclass(frozen=True)
class Recompile:
    """A function that was compiled again."""

    function: str
    step: int | None
    seconds: float
    changes: list[dict[str, str]]
    """What changed: `path` of the argument's leaf, `kind` (shape, dtype, ...), `old` and `new`."""
    num_changes: int
    """How many leaves changed; `changes` has only the first."""
    suggestion: str


@dataclass(frozen=True)
class CompileSummary:
    """Everything that was compiled, except single operations."""

    num_compiles: int
    num_recompiles: int
    seconds: float
    functions: list[FunctionCompiles]
    """By function, the longest first."""
    recompiles: list[Recompile]
    """In order; only the last ones if there are many."""
    num_operations: int = 0
    operations_s: float = 0.0
    """Single operations of JAX that ran outside of any jitted function, such as `jnp.ones`."""
    only_traced_s: float = 0.0
    """What the ledger has of compiling beyond all these: tracing that led to no program, as for shapes."""


def summarise_compiles(rows: Iterable[Mapping[str, Any]], ledger_s: float = 0.0) -> CompileSummary:
    """Summarise the `compile` rows of a run.

    Args:
        rows: The rows, in order.
        ledger_s: What the ledger has of compiling.
    """
    rows = list(rows)
    named = [row for row in rows if not row.get("is_operation")]
    operations = [row for row in rows if row.get("is_operation")]
    programs_s, operations_s = sum(map(compile_time_s, named)), sum(map(compile_time_s, operations))
    by_function: dict[str, list[Mapping[str, Any]]] = {}
    for row in named:
        by_function.setdefault(str(row.get("function")), []).append(row)
    functions = [_of_function(name, own) for name, own in by_function.items()]
    recompiles = [row for row in named if row.get("num_recompiles")]
    return CompileSummary(
        len(named),
        len(recompiles),
        programs_s,
        sorted(functions, key=lambda one: -one.seconds),
        [_recompile(row) for row in recompiles[-MAX_RECOMPILES:]],
        len(operations),
        operations_s,
        max(ledger_s - programs_s - operations_s, 0.0),
    )


def _of_function(name: str, rows: list[Mapping[str, Any]]) -> FunctionCompiles:
    return FunctionCompiles(
        name,
        len(rows),
        sum(bool(row.get("num_recompiles")) for row in rows),
        sum(map(compile_time_s, rows)),
        sum(row.get("cache") == "hit" for row in rows),
    )


def _recompile(row: Mapping[str, Any]) -> Recompile:
    return Recompile(
        str(row.get("function")),
        row.get("step"),
        compile_time_s(row),
        list(row.get("changes") or []),
        int(row.get("num_changes") or 0),
        str(row.get("suggestion") or ""),
    )
