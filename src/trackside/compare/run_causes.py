"""What changed around the program, told from the rows of two runs: compiles, batches, configuration, environment."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trackside.compare.difference import Cause
from trackside.compare.sides import Side
from trackside.findings.compile_rules import compile_time_s
from trackside.findings.loader_facts import loaders_of
from trackside.text import count, head

MIN_BATCH_CHANGE = 0.01
# Where a run is written to and what it is called has no part in how fast it is.
_UNIMPORTANT = frozenset(
    {
        "log_path",
        "log_dir",
        "dirpath",
        "profile_log_dir",
        "cmd_logging_name",
        "run_name",
        "wb_name",
        "name_suffix",
        "silence_findings",
    }
)
_PLACES = (
    ("backend", "backend"),
    ("devices", "devices"),
    ("mesh", "mesh"),
    ("platform", "platform"),
    ("hostname", "host"),
)
_NUM_LISTED = 3
_MAX_TEXT = 60


def run_causes(before: Side, after: Side) -> Iterator[Cause]:
    """All changes that two runs wrote down."""
    yield from _changed_compiles(before, after)
    yield from _changed_batch_size(before, after)
    yield from _changed_loaders(before.environment, after.environment)
    yield from _changed_config(before, after)
    yield from _changed_environment(before.environment, after.environment)


def _changed_compiles(before: Side, after: Side) -> Iterator[Cause]:
    first, second = (Counter(row["function"] for row in side.compiles) for side in (before, after))
    for function in second:
        if second[function] <= max(first[function], 1):
            continue
        earlier, rows = ([row for row in side.compiles if row["function"] == function] for side in (before, after))
        before_s, after_s = (sum(map(compile_time_s, own)) for own in (earlier, rows))
        num_steps = 0 if after.ledger is None else after.ledger.num_steps
        reasons = _reasons(rows)
        yield Cause(
            "more_recompiles",
            f"{function} was compiled {count(second[function], 'time')} instead of {first[function]}"
            + (f": {reasons}" if reasons else ""),
            {
                "compiles_before": first[function],
                "compiles_after": second[function],
                "compile_time_before_s": before_s,
                "compile_time_after_s": after_s,
            },
            function,
            (after_s - before_s) / num_steps if num_steps else None,
        )


def _reasons(rows: Sequence[Mapping[str, Any]]) -> str:
    """What changed in the arguments, as the rows tell it."""
    texts = (
        f"{change['path']} {change['kind']} {change['old']} -> {change['new']}"
        for row in rows
        for change in row.get("changes") or ()
    )
    return next(iter(dict.fromkeys(texts)), "")


def _changed_batch_size(before: Side, after: Side) -> Iterator[Cause]:
    first, second = before.steps.batch_size, after.steps.batch_size
    if first and second and abs(second / first - 1.0) > MIN_BATCH_CHANGE:
        yield Cause(
            "batch_size_changed",
            f"a step has {second:.4g} examples instead of {first:.4g}",
            {"examples_before": first, "examples_after": second},
        )


def _changed_loaders(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Cause]:
    """What the batches come from, if both runs say so."""
    if not before.get("loaders") or not after.get("loaders"):
        return
    first, second = (
        {name: loader.text for name, loader in loaders_of(side["loaders"]).items()} for side in (before, after)
    )
    for name in dict.fromkeys((*first, *second)):
        change = f"{first.get(name, 'none')} -> {second.get(name, 'none')}"
        if first.get(name) != second.get(name):
            yield Cause("loader_changed", f"{name} loader: {change}", {f"{name} loader": change}, name)


def _changed_config(before: Side, after: Side) -> Iterator[Cause]:
    first, second = dict(flat_config(before.config)), dict(flat_config(after.config))
    changes = {
        path: f"{_text(first.get(path, '(not set)'))} -> {_text(second.get(path, '(not set)'))}"
        for path in dict.fromkeys((*first, *second))
        if first.get(path, _MISSING) != second.get(path, _MISSING) and path not in _NO_CHANGES
    }
    if changes and first and second:
        shown = ", ".join(f"{path} {change}" for path, change in list(changes.items())[:_NUM_LISTED])
        more = f" and {len(changes) - _NUM_LISTED} more" if len(changes) > _NUM_LISTED else ""
        yield Cause("config_changed", f"the configuration changed: {shown}{more}", changes, next(iter(changes)))


_MISSING = object()
_NO_CHANGES = frozenset({"trainer.resume"})
"""What differs between runs of one script: whether the folder held a run that was to be continued."""


def flat_config(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a configuration by their dotted paths, but for those that have no part in speed."""
    if isinstance(config, Mapping):
        for name, value in config.items():
            if name not in _UNIMPORTANT:
                yield from flat_config(value, f"{path}.{name}" if path else str(name))
    elif isinstance(config, list) and any(isinstance(entry, Mapping | list) for entry in config):
        for index, entry in enumerate(config):
            yield from flat_config(entry, f"{path}[{index}]")
    else:
        yield path, config


def _text(value: Any) -> str:
    return head(str(value), _MAX_TEXT)


def _changed_environment(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Cause]:
    if not before or not after:
        return
    versions = [{"python": side.get("python"), **(side.get("versions") or {})} for side in (before, after)]
    changed = {
        name: f"{versions[0].get(name, 'none')} -> {versions[1].get(name, 'none')}"
        for name in dict.fromkeys((*versions[0], *versions[1]))
        if versions[0].get(name) != versions[1].get(name)
    }
    if changed:
        shown = ", ".join(f"{name} {change}" for name, change in changed.items())
        yield Cause("versions_changed", f"versions changed: {shown}", changed, next(iter(changed)))
    places = {
        text: f"{_text(before.get(name))} -> {_text(after.get(name))}"
        for name, text in _PLACES
        if name in before and name in after and before[name] != after[name]
    }
    if places:
        shown = ", ".join(f"{name} {change}" for name, change in places.items())
        yield Cause("device_changed", f"the machine changed: {shown}", places, next(iter(places)))
    yield from _changed_code(before.get("git") or {}, after.get("git") or {})


def _changed_code(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Cause]:
    commits = [str(side.get("commit", ""))[:9] for side in (before, after)]
    if all(commits) and commits[0] != commits[1]:
        yield Cause(
            "code_changed", f"the commit changed: {commits[0]} -> {commits[1]}", {"commit": " -> ".join(commits)}
        )
    elif before.get("dirty") or after.get("dirty"):
        yield Cause("code_changed", "the code may differ: one run had uncommitted changes")
