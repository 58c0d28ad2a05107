"""What changed in the compiled step, from the programs and tables of two captures."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from trackside.compare.difference import Cause
from trackside.compare.program_outline import Operation, Outline, outline_of
from trackside.compare.sides import Side
from trackside.compare.traced_steps import TracedSteps
from trackside.text import count, percent, seconds
from trackside.trace.tables import NO_SCOPE

MIN_TYPE_SHARE = 0.1
"""A type counts as that of a scope if it makes up so much of its values."""
MIN_FLOPS_CHANGE = 0.01
_NUM_LISTED = 3


def program_causes(before: Side, after: Side) -> Iterator[Cause]:
    """All changes of the program that two captures show."""
    if before.trace is None or after.trace is None:
        return
    first, second = _outline(before.trace), _outline(after.trace)
    yield from _changed_scopes(before.trace, after.trace, first, second)
    yield from _changed_work(before.trace, after.trace)
    if first is not None and second is not None:
        yield from _changed_types(first, second)
        yield from _changed_fusions(before.trace, after.trace, first, second)


def _outline(trace: TracedSteps) -> Outline | None:
    return None if trace.module is None else outline_of(trace.module)


def _changed_scopes(
    before: TracedSteps, after: TracedSteps, first: Outline | None, second: Outline | None
) -> Iterator[Cause]:
    """Scopes that only one program has; of those that lie under each other, the outermost."""
    scopes = [_scope_paths(trace, outline) for trace, outline in ((before, first), (after, second))]
    for kind, own, others, trace in (("added", scopes[1], scopes[0], after), ("removed", scopes[0], scopes[1], before)):
        new = own - others
        outermost = sorted(scope for scope in new if not any(parent in new for parent in _parents(scope)))
        for scope in outermost:
            spent_s = _time_under(trace, scope)
            sign = 1 if kind == "added" else -1
            yield Cause(
                f"scope_{kind}",
                f"the scope {scope} was {kind}, {seconds(spent_s)} of device time per step",
                {"device_time_per_step_s": spent_s},
                scope,
                sign * spent_s,
            )


def _scope_paths(trace: TracedSteps, outline: Outline | None) -> set[str]:
    """All scopes and those around them."""
    # A kernel counts to one scope; the program knows of the others that were fused into it.
    leaves = {scope for scope, _ in trace.scopes} if outline is None else set(outline.scopes)
    return {path for leaf in leaves if leaf != NO_SCOPE for path in (leaf, *_parents(leaf))}


def _parents(scope: str) -> Iterator[str]:
    while "/" in scope:
        scope = scope.rpartition("/")[0]
        yield scope


def _time_under(trace: TracedSteps, scope: str) -> float:
    return sum(
        per_step.mean_s for (path, _), per_step in trace.scopes.items() if path == scope or path.startswith(f"{scope}/")
    )


def _changed_work(before: TracedSteps, after: TracedSteps) -> Iterator[Cause]:
    """Another number of FLOPs in matrix products and convolutions."""
    first, second = sum(before.flops.values()), sum(after.flops.values())
    if not first or not second or abs(second - first) < MIN_FLOPS_CHANGE * first:
        return
    keys = {*before.flops, *after.flops}
    scope, phase = max(keys, key=lambda key: abs(after.flops.get(key, 0.0) - before.flops.get(key, 0.0)))
    share = second / first - 1.0
    how_much = f"{percent(abs(share))} {'more' if share > 0 else 'fewer'}"
    yield Cause(
        "work_changed",
        f"a step has {how_much} FLOPs, most of the change in {scope} ({phase})",
        {"flops_before": first, "flops_after": second, "change_share": share},
        scope,
    )


def _changed_types(first: Outline, second: Outline) -> Iterator[Cause]:
    """Floating-point types that came into scopes, or left them."""
    by_change: dict[tuple[str, str], list[str]] = {}
    types = _types_by_scope(first), _types_by_scope(second)
    for scope in sorted(types[0].keys() & types[1].keys()):
        old, new = types[0][scope], types[1][scope]
        if old != new:
            by_change.setdefault((" and ".join(sorted(old)), " and ".join(sorted(new))), []).append(scope)
    for (old, new), scopes in by_change.items():
        yield Cause(
            "dtype_changed",
            f"values are {new} instead of {old} in {_listed(scopes)}",
            {"before": old, "after": new, "num_scopes": len(scopes)},
            scopes[0],
        )


def _types_by_scope(outline: Outline) -> dict[str, frozenset[str]]:
    totals: dict[str, Counter[str]] = {}
    for (scope, _), types in outline.types.items():
        totals.setdefault(scope, Counter()).update(types)
    return {
        scope: frozenset(name for name, number in types.items() if number >= MIN_TYPE_SHARE * types.total())
        for scope, types in totals.items()
    }


def _changed_fusions(before: TracedSteps, after: TracedSteps, first: Outline, second: Outline) -> Iterator[Cause]:
    """The same work in another number of kernels.

    A fusion repeats what several of its results need. Split up, a program has no more instructions than before; one
    that has more kernels and more instructions does more work, which is another matter.
    """
    for key in sorted(first.operations.keys() & second.operations.keys()):
        before_ops, after_ops = first.operations[key], second.operations[key]
        shared = before_ops.keys() & after_ops.keys()
        # What is traced from more places, or fewer, is another computation.
        if any(before_ops[name].num_traced != after_ops[name].num_traced for name in shared):
            continue
        old, new = (_num_kernels(operations, shared) for operations in (before_ops, after_ops))
        work = sum(after_ops[name].num_instructions - before_ops[name].num_instructions for name in shared)
        is_split, is_merged = new > old and work <= 0, new < old and work >= 0
        if not (is_split or is_merged):
            continue
        scope, phase = key
        change_s = _change_of(before.scopes, after.scopes, key)
        yield Cause(
            "fusion_split" if is_split else "fusion_merged",
            f"what {scope} computes ({phase}) now takes {count(new, 'kernel')} instead of {old}",
            {"kernels_before": old, "kernels_after": new},
            scope,
            change_s,
        )


def _num_kernels(operations: Mapping[tuple[str, str], Operation], names: Collection[tuple[str, str]]) -> int:
    return len(frozenset().union(*(operations[name].kernels for name in names)))


def _change_of(before: Mapping, after: Mapping, key: tuple[str, str]) -> float | None:
    if key not in before or key not in after:
        return None
    return after[key].mean_s - before[key].mean_s


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NUM_LISTED])
    return shown if len(names) <= _NUM_LISTED else f"{shown} and {len(names) - _NUM_LISTED} more"
