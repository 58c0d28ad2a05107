"""Rules on compiles: functions that keep being recompiled, a smaller last batch, compiling that takes too long."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from trackside.findings.facts import COMPILE_PHASES, RunFacts
from trackside.findings.finding import Finding
from trackside.profiling.ledger_totals import COMPILE
from trackside.text import count, percent, seconds

MIN_RECOMPILES = 2
"""One may be a warm-up: an array that is committed from the second step on, say."""
SEVERE_RECOMPILES = 10
"""This many are not an accident, and will not stop."""
SEVERE_RECOMPILE_SHARE = 0.2

MIN_RAGGED_SHARE = 0.01
MIN_RAGGED_S = 5.0
"""A recompile that costs less, both in time and as a share of the run, is reported for information."""

MIN_COMPILE_S = 10.0
"""Every training compiles; less than this is not worth a change."""
MIN_COMPILE_SHARE = 0.3
SEVERE_COMPILE_SHARE = 0.6
SEVERE_COMPILE_S = 60.0

_CACHE = "set compile_cache of the TrainerConfig to a path that runs share"
_CACHE_OF_OWN_LOOP = 'jax.config.update("jax_compilation_cache_dir", ...)'
_SCANS = {
    "linen": "nn.scan",
    "nnx": "nnx.scan, over layers that nnx.vmap makes",
    "equinox": "jax.lax.scan, over layers that eqx.filter_vmap makes",
}
_ANY_SCAN = "jax.lax.scan"
_MAX_CAUSES = 2
_KIND_NAMES = {"static": "static value", "committed": "placement"}


def recompiling(facts: RunFacts) -> Iterator[Finding]:
    """A function is recompiled again and again; one finding for each. A smaller last batch does not count."""
    last_steps = _last_steps(facts)
    rows = [row for row in _recompiles(facts) if not is_ragged_last_batch(row, last_steps)]
    for function in dict.fromkeys(row["function"] for row in rows):
        own = [row for row in rows if row["function"] == function]
        number = len({(row["step"], row["num_recompiles"]) for row in own})  # a call may compile several programs
        if number < MIN_RECOMPILES:
            continue
        cost_s = sum(compile_time_s(row) for row in own)
        share = _share_of_wall(facts, cost_s)
        is_severe = number >= SEVERE_RECOMPILES or (share or 0.0) >= SEVERE_RECOMPILE_SHARE
        yield Finding(
            "recompiling",
            "severe" if is_severe else "warning",
            f"{function} was recompiled {count(number, 'time')} ({seconds(cost_s)}){_because(own)}",
            {
                "function": function,
                "num_recompiles": number,
                "recompile_s": cost_s,
                **({} if share is None else {"recompile_share": share}),
                **_first_and_last_step(own),
            },
            _advice(_usual(own)["suggestion"]),
            subject=function,
        )


def ragged_last_batch(facts: RunFacts) -> Iterator[Finding]:
    """The last batch of an epoch is smaller, so that a function is recompiled; one finding for each function."""
    last_steps = _last_steps(facts)
    rows = [row for row in _recompiles(facts) if is_ragged_last_batch(row, last_steps)]
    for function in dict.fromkeys(row["function"] for row in rows):
        own = [row for row in rows if row["function"] == function]
        cost_s = sum(compile_time_s(row) for row in own)
        share = _share_of_wall(facts, cost_s)
        is_expensive = cost_s >= MIN_RAGGED_S or (share or 0.0) >= MIN_RAGGED_SHARE
        change = own[0]["changes"][0]
        yield Finding(
            "ragged_last_batch",
            "warning" if is_expensive else "info",
            f"the last batch is smaller ({change['old']} -> {change['new']}), which cost "
            f"{_recompiles_in_words(own)} of {function} ({seconds(cost_s)})",
            {
                "function": function,
                "leaf": change["path"],
                "usual_shape": change["old"],
                "last_shape": change["new"],
                "step": own[0]["step"],
                "recompile_s": cost_s,
                **({} if share is None else {"recompile_share": share}),
            },
            "drop the remainder in the loader, or pad the last batch",
            subject=function,
        )


def slow_compile(facts: RunFacts) -> Finding | None:
    """Compiling takes much of the run, and not because of recompiles."""
    ledger = facts.ledger
    if ledger is None:
        return None
    cost_s, share = ledger.parts.get(COMPILE, 0.0), ledger.share(COMPILE)
    recompile_s = sum(compile_time_s(row) for row in _recompiles(facts))
    if cost_s < MIN_COMPILE_S or share < MIN_COMPILE_SHARE or recompile_s > cost_s / 2:
        return None
    evidence: dict[str, float | int | str] = {"compile_share": share, "compile_s": cost_s}
    if facts.compiles:
        slowest = max(facts.compiles, key=compile_time_s)
        evidence |= {"slowest_function": slowest["function"], "slowest_compile_s": compile_time_s(slowest)}
    return Finding(
        "slow_compile",
        "severe" if share >= SEVERE_COMPILE_SHARE and cost_s >= SEVERE_COMPILE_S else "warning",
        f"compiling takes {percent(share)} of the run",
        evidence,
        _advice_for_slow_compile(facts),
    )


def is_ragged_last_batch(row: Mapping[str, Any], last_steps: frozenset[int]) -> bool:
    """Whether a row is about a batch with fewer examples at an epoch's last step: only leading sizes, all smaller."""
    changes = row["changes"]
    if row["step"] not in last_steps or not changes or any(change["kind"] != "shape" for change in changes):
        return False
    return all(_is_shorter(change["old"], change["new"]) for change in changes)


def compile_time_s(row: Mapping[str, Any]) -> float:
    """What a compile took: tracing, lowering and compiling."""
    return sum(row.get(part) or 0.0 for part in COMPILE_PHASES)


def _advice_for_slow_compile(facts: RunFacts) -> str:
    scan = f"if the model has many equal layers, scan over them ({_SCANS.get(facts.library, _ANY_SCAN)})"
    has_cache = any(row.get("cache") in ("hit", "miss") for row in facts.compiles)
    if has_cache and facts.is_own_loop:
        return f"the compile cache is on, so the next run compiles less; {scan}"
    if has_cache:
        return (
            f"the compile cache is on, so a resumed run compiles less; compile_cache=<path> lets runs share it; {scan}"
        )
    return f"let reruns reuse the programs: {_CACHE_OF_OWN_LOOP if facts.is_own_loop else _CACHE}; {scan}"


def _is_shorter(old: str, new: str) -> bool:
    """Whether only the first size of a shape has become smaller."""
    before, after = (re.findall(r"\d+", shape) for shape in (old, new))
    return len(before) == len(after) > 0 and int(after[0]) < int(before[0]) and before[1:] == after[1:]


def _recompiles(facts: RunFacts) -> list[dict[str, Any]]:
    return [row for row in facts.compiles if row["num_recompiles"]]


def _last_steps(facts: RunFacts) -> frozenset[int]:
    return frozenset(epoch.last_step for epoch in facts.epochs)


def _share_of_wall(facts: RunFacts, cost_s: float) -> float | None:
    return cost_s / facts.ledger.wall_s if facts.ledger is not None and facts.ledger.wall_s > 0 else None


def _because(rows: list[dict[str, Any]]) -> str:
    """The arguments that changed most often, as a clause."""
    changed = Counter(cause for row in rows if (cause := _cause(row)))
    if not changed:
        return ""
    often = [f"the {_KIND_NAMES.get(kind, kind.replace('_', ' '))} of {path}" for path, kind in _ranked(changed)]
    return f" because {' and '.join(often[:_MAX_CAUSES])} changed{', among others' if len(often) > _MAX_CAUSES else ''}"


def _usual(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The last of the compiles with the most frequent cause: its suggestion is for what the title names first."""
    changed = Counter(cause for row in rows if (cause := _cause(row)))
    usual = _ranked(changed)[0] if changed else None
    return [row for row in rows if _cause(row) == usual][-1]


def _cause(row: dict[str, Any]) -> tuple[str, str] | None:
    """Which argument changed, and what about it."""
    return (row["changes"][0]["path"], row["changes"][0]["kind"]) if row["changes"] else None


def _ranked(causes: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    return [cause for cause, _ in causes.most_common()]


def _recompiles_in_words(rows: list[dict[str, Any]]) -> str:
    number = len({(row["step"], row["num_recompiles"]) for row in rows})  # a call may compile several programs
    return "one recompile" if number == 1 else count(number, "recompile")


def _advice(suggestion: str) -> str:
    """What the sentinel suggests, as a clause."""
    return suggestion[:1].lower() + suggestion[1:] or "give it the same shapes, dtypes and static values each time"


def _first_and_last_step(rows: list[dict[str, Any]]) -> dict[str, int]:
    steps = [row["step"] for row in rows if row["step"] is not None]
    return {"first_step": steps[0], "last_step": steps[-1]} if steps else {}
