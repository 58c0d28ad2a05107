"""An assertion that a training did not compile more often than it has to, from what its run wrote."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from trackside.errors import ConfigError
from trackside.runs import Run, open_run
from trackside.text import count, seconds


def assert_run_compiled_once(run: Run | str | os.PathLike[str], *functions: str, allow: int = 0) -> None:
    """Fail where a function was compiled more than once in a run; `assert_no_recompiles` does it for a block of code.

    Args:
        run: The run, by its path or opened.
        *functions: The names of functions to look at, such as `train_step`; all by default.
        allow: How many recompiles of each function are fine.

    Raises:
        AssertionError: A function was compiled too often. It names the function, how often, and what changed.
        ConfigError: `allow` is negative, or a function was not compiled at all.
    """
    if allow < 0:
        raise ConfigError(f"allow: expected how many recompiles are fine, 0 or more; got {allow}")
    source = run if isinstance(run, Run) else open_run(run)
    by_function: dict[str, list[Mapping[str, Any]]] = {}
    for row in source.compiles:
        if not row.get("is_operation"):
            by_function.setdefault(row["function"], []).append(row)
    unknown = [function for function in functions if function not in by_function]
    if unknown:
        known = ", ".join(by_function) or "none"
        raise ConfigError(f"functions: {', '.join(unknown)} not compiled in {source.path}; compiled were {known}")
    failures = [
        _describe(function, rows, allow + 1)
        for function, rows in by_function.items()
        if len(rows) > allow + 1 and (not functions or function in functions)
    ]
    if failures:
        raise AssertionError("\n".join(failures))


def _describe(function: str, rows: Sequence[Mapping[str, Any]], num_allowed: int) -> str:
    cost_s = sum(row.get(part) or 0.0 for row in rows for part in ("trace_s", "lower_s", "compile_s"))
    reasons = dict.fromkeys(_reason(row) for row in rows if row.get("changes"))
    headline = f"{function} was compiled {count(len(rows), 'time')} in {seconds(cost_s)}, {num_allowed} expected:"
    return "\n  ".join([headline, *(reasons or ["the run does not say what changed"])])


def _reason(row: Mapping[str, Any]) -> str:
    changes = "; ".join(
        f"{change['path']}: {change['kind']} {change['old']} -> {change['new']}" for change in row["changes"]
    )
    return f"at step {row['step']}, {changes}. {row['suggestion']}"
