"""The differences between two runs, section by section: ledger, scopes, operations, memory, compiles."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trackside.compare.bootstrap import block_length, resampled
from trackside.compare.difference import Difference, interval_of, largest_first
from trackside.compare.sides import Side
from trackside.compare.traced_steps import Key, PerStep
from trackside.findings.compile_rules import compile_time_s
from trackside.profiling.ledger_totals import CALLBACK, COMPILE, is_once
from trackside.runs import MetricTable

MIN_TIME_ROWS = 8
"""With fewer rows of where the time went, no interval is given for the parts of the ledger."""
MIN_TRACED_STEPS = 5
"""With fewer traced steps, no interval is given for scopes and operations."""

_CALLBACKS = "callbacks"


def ledger_differences(before: Side, after: Side, rng: np.random.Generator) -> tuple[Difference, ...]:
    """Seconds per step by part of the ledger, the most certain and largest first; what is no part of steps is left out.

    Rows of where the time went, about ten per second at most, give the figures and how certain they are; those in which
    something compiled are left out, and the first of a run. If there are too few, the totals of the runs are compared.
    """
    if before.ledger is None or after.ledger is None:
        return ()
    rows = _clean_rows(before.time_rows), _clean_rows(after.time_rows)
    totals = _parts_per_step(before), _parts_per_step(after)
    found = []
    are_alike = before.ledger.has_set_up == after.ledger.has_set_up  # what compiling is differs between versions
    for part in dict.fromkeys((*totals[0], *totals[1])):
        if is_once(part) and not (part == COMPILE and are_alike):
            continue
        columns = [row.get(part) for row in rows]
        if part == COMPILE or any(column is None or len(column) < MIN_TIME_ROWS for column in columns):
            found.append(Difference(part, totals[0].get(part), totals[1].get(part)))
            continue
        known = [column for column in columns if column is not None]
        first, second = (float(column[:, 0].sum() / column[:, 1].sum()) for column in known)
        draws = [resampled(column, _ratios, rng, length=block_length(column[:, 0] / column[:, 1])) for column in known]
        found.append(Difference(part, first, second, "s", *interval_of(draws[1] - draws[0])))
    return largest_first([one for one in found if one.before or one.after])


def _parts_per_step(side: Side) -> dict[str, float]:
    """Seconds per step of the whole run, callbacks in one as in the rows `time`."""
    assert side.ledger is not None
    num_steps = max(side.ledger.num_steps, 1)
    parts: dict[str, float] = defaultdict(float)
    for part, seconds in side.ledger.parts.items():
        parts[_CALLBACKS if part.startswith(CALLBACK) else part] += seconds / num_steps
    return dict(parts)


def _clean_rows(table: MetricTable | None) -> dict[str, np.ndarray]:
    """By part, the seconds and the steps of each row that nothing compiled in."""
    if table is None or len(table) < 2 or "compile_ms" not in table:
        return {}
    num_steps = np.diff(table.step, prepend=0)
    is_clean = (table["compile_ms"] == 0) & (num_steps > 0)
    is_clean[0] = False
    weights = num_steps[is_clean].astype(float)
    parts = {name.removesuffix("_ms"): table[name][is_clean] / 1e3 for name in table.names if name.endswith("_ms")}
    return {part: np.stack([np.nan_to_num(column) * weights, weights], axis=1) for part, column in parts.items()}


def _ratios(drawn: np.ndarray) -> np.ndarray:
    """Seconds per step, of rows that were drawn."""
    sums = drawn.sum(axis=1)
    return sums[:, 0] / sums[:, 1]


def scope_differences(before: Side, after: Side, rng: np.random.Generator) -> tuple[Difference, ...]:
    """Seconds of device time per step by scope and phase."""
    if before.trace is None or after.trace is None:
        return ()
    found = []
    for key, first, second in _aligned(before.trace.scopes, after.trace.scopes):
        scope, phase = key
        found.append(_per_step_difference(scope, first, second, rng, phase=phase))
    return largest_first(found)


def op_differences(before: Side, after: Side, rng: np.random.Generator) -> tuple[Difference, ...]:
    """Seconds of device time per step by operation, scope and phase; operations are known by name without number."""
    if before.trace is None or after.trace is None:
        return ()
    found = []
    for key, first, second in _aligned(before.trace.ops, after.trace.ops):
        op, scope, phase = key
        found.append(_per_step_difference(op, first, second, rng, phase=phase, scope=scope))
    return largest_first(found)


def _aligned(
    before: Mapping[Key, PerStep], after: Mapping[Key, PerStep]
) -> Iterable[tuple[Key, PerStep | None, PerStep | None]]:
    for key in dict.fromkeys((*before, *after)):
        yield key, before.get(key), after.get(key)


def _per_step_difference(
    name: str,
    before: PerStep | None,
    after: PerStep | None,
    rng: np.random.Generator,
    phase: str,
    scope: str = "",
) -> Difference:
    """The medians over steps where these are known, since a step that was interrupted says nothing of the program."""
    samples = [None if side is None else side.samples for side in (before, after)]
    present = [values for values in samples if values is not None]
    has_interval = len(present) == sum(side is not None for side in (before, after)) and all(
        len(values) >= MIN_TRACED_STEPS for values in present
    )
    if not has_interval:
        means = [None if side is None else side.mean_s for side in (before, after)]
        return Difference(name, means[0], means[1], phase=phase, scope=scope)
    medians = [None if values is None else float(np.median(values)) for values in samples]
    draws = [
        np.zeros(1) if values is None else resampled(values, _medians, rng, num_resamples=400) for values in samples
    ]
    return Difference(name, medians[0], medians[1], "s", *interval_of(draws[1] - draws[0]), phase=phase, scope=scope)


def _medians(drawn: np.ndarray) -> np.ndarray:
    return np.median(drawn, axis=1)


def memory_differences(before: Side, after: Side) -> tuple[Difference, ...]:
    """Bytes: the peaks of devices and process, the most that each owner held, and what the step's program needs."""
    figures = _memory_figures(before), _memory_figures(after)
    names = [name for name in figures[0] if name in figures[1]]
    found = [
        # What the process holds depends on its allocator and its libraries; everything else is counted.
        Difference(name, figures[0][name], figures[1][name], "bytes", is_exact="process" not in name)
        for name in names
    ]
    return largest_first(found)


def _memory_figures(side: Side) -> dict[str, float]:
    figures: dict[str, float] = {}
    peaks = Counter[str]()
    owners: dict[str, list[float]] = defaultdict(list)
    for row in side.memory:
        for device, sample in (row.get("memory") or {}).items():
            peaks[f"peak on {device}"] = max(peaks[f"peak on {device}"], sample.get("peak_bytes_in_use") or 0)
        host = (row.get("host") or {}).get("peak_rss_bytes")
        if host is not None:
            peaks["peak of the process"] = max(peaks["peak of the process"], host)
        for owner, num_bytes in (row.get("live") or {}).items():
            if owner != "num_arrays":
                owners[f"live: {owner}"].append(num_bytes)
    figures.update(peaks)
    figures.update({owner: max(values) for owner, values in owners.items()})
    if side.trace is not None:
        figures.update({f"program: {name}": value for name, value in side.trace.peak_bytes.items()})
    return figures


def compile_differences(before: Side, after: Side) -> tuple[Difference, ...]:
    """How often each function was compiled, and how long that took; a single compile has no interval."""
    if before.kind == "trace":
        return ()
    counts = _compiles(before.compiles), _compiles(after.compiles)
    found = []
    for function in dict.fromkeys((*counts[0], *counts[1])):
        (first_number, first_s), (second_number, second_s) = (side.get(function, (0, 0.0)) for side in counts)
        found.append(Difference(function, first_number, second_number, "count", is_exact=True))
        found.append(Difference(function, first_s, second_s, "s"))
    return tuple(sorted(found, key=lambda one: (one.unit != "count", not one.is_significant, -abs(one.change))))


def _compiles(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, float]]:
    numbers: Counter[str] = Counter()
    seconds: dict[str, float] = defaultdict(float)
    for row in rows:
        numbers[row["function"]] += 1
        seconds[row["function"]] += compile_time_s(row)
    return {function: (number, seconds[function]) for function, number in numbers.items()}
