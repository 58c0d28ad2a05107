"""Compiles by function, and each recompile with the argument that changed."""

from trackside.report.compile_summary import CompileSummary, Recompile
from trackside.report.html.markup import Cell, Column, Html, code, element, joined, table, with_code
from trackside.report.html.section import Section, panel
from trackside.text import count, seconds

_MAX_FUNCTIONS = 30
_MAX_RECOMPILES = 50


def build(summary: CompileSummary) -> Section:
    """The section."""
    if not summary.num_compiles:
        return Section("compiles", "Compilation", missing=[joined("No compile has been recorded.")])
    again = panel("Recompiles", _recompile_table(summary)) if summary.num_recompiles else None
    if again is None:
        again = element("p", "No function was recompiled.", class_="all-clear")
    content = [again, panel("By function", _function_table(summary))]
    lead = f"{count(summary.num_compiles, 'compile')} in {seconds(summary.seconds)}."
    return Section("compiles", "Compilation", content, lead)


def _recompile_table(summary: CompileSummary) -> Html:
    columns = [
        Column("step", is_number=True),
        Column("function", is_code=True),
        Column("took", is_number=True),
        Column("what changed", is_long=True),
    ]
    rows = [
        [
            Cell("-" if one.step is None else f"{one.step:,}", one.step if one.step is not None else -1),
            one.function,
            Cell(seconds(one.seconds), one.seconds),
            _changes(one),
        ]
        for one in summary.recompiles[-_MAX_RECOMPILES:]
    ]
    shown = table(columns, rows, "Recompiles")
    if summary.num_recompiles <= _MAX_RECOMPILES:
        return shown
    note = f"The last {len(rows)} of {summary.num_recompiles:,}."
    return element("div", shown, element("p", note, class_="note"))


def _changes(one: Recompile) -> Html:
    lines = [
        code(f"{change.get('path')}: {change.get('kind')} {change.get('old')} → {change.get('new')}")
        for change in one.changes
    ]
    hidden = one.num_changes - len(one.changes)
    lines += [f"and {hidden:,} more"] if hidden > 0 else []
    advice = element("div", with_code(one.suggestion), class_="soft") if one.suggestion else None
    return joined([element("div", line) for line in lines or ["unknown"]], advice)


def _function_table(summary: CompileSummary) -> Html:
    columns = [
        Column("function", is_code=True),
        Column("compiles", is_number=True),
        Column("recompiles", is_number=True, explanation="Compiles of a function that had been compiled before."),
        Column(
            "from cache",
            is_number=True,
            is_minor=True,
            explanation="Programs found in JAX's persistent compilation cache.",
        ),
        Column("took", is_number=True),
    ]
    rows = [
        [one.function, one.num_compiles, one.num_recompiles, one.num_cached, Cell(seconds(one.seconds), one.seconds)]
        for one in summary.functions[:_MAX_FUNCTIONS]
    ]
    shown = table(columns, rows, "Compiles by function")
    if len(summary.functions) <= _MAX_FUNCTIONS:
        return shown
    note = f"The {_MAX_FUNCTIONS} that took longest of {len(summary.functions):,}."
    return element("div", shown, element("p", note, class_="note"))
