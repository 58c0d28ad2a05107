"""Memory and compiles of two runs."""

from trackside.compare import Comparison, Difference
from trackside.report.html.comparison.changes import change_table
from trackside.report.html.comparison.values import before_and_after, change_text, value_text
from trackside.report.html.markup import Cell, Column, Html, code, joined, table
from trackside.report.html.section import Section, panel
from trackside.text import count

_MAX_ROWS = 30


def build_memory(comparison: Comparison) -> Section:
    """The memory of devices, process and program."""
    found = comparison.memory
    if not found:
        how = code("MemoryProfileConfig(profile_every_n_steps=100)")
        text = "It was not measured in both runs. Add "
        hint = joined(text, how, " to ", code("TrainerConfig(callbacks=[...])"), ".")
        return Section("memory", "Memory", missing=[hint])
    changed = sum(one.is_significant for one in found)
    lead = f"{changed} of {count(len(found), 'figure')} changed." if changed else "No figure changed significantly."
    note = "Peaks, and the most that each owner held. “program” is the compiler's plan for one step."
    rows = change_table("what", found[:_MAX_ROWS], _name, "Memory in both runs")
    return Section("memory", "Memory", panel("Bytes", rows, note=note), lead=lead)


def _name(one: Difference) -> str:
    return one.name


def build_compiles(comparison: Comparison) -> Section:
    """How often each function was compiled, and how long that took."""
    if not comparison.compiles:
        text = "Captures do not record compiles; compare the runs."
        if comparison.before.kind == "run":
            text = "Neither run recorded compiles."
        return Section("compiles", "Compilation", missing=[joined(text)])
    numbers = [one for one in comparison.compiles if one.unit == "count"]
    times = {one.name: one for one in comparison.compiles if one.unit == "s"}
    changed = [one for one in numbers if one.change]
    lead = (
        f"{len(changed):,} of {count(len(numbers), 'function')} compiled a different number of times."
        if changed
        else ""
    )
    lead = lead or "Every function was compiled the same number of times."
    note = "Compile times depend on the machine and on the compilation cache, so they have no interval."
    content = panel("By function", _compile_table(numbers, times), note=note)
    return Section("compiles", "Compilation", content, lead=lead)


def _compile_table(numbers: list[Difference], times: dict[str, Difference]) -> Html:
    columns = [
        Column("function", is_code=True),
        Column("compiles", is_number=True, explanation="Before and after."),
        Column("took", is_number=True, explanation="All compiles together, before and after."),
        Column("change", is_number=True, is_minor=True, explanation="Of the time taken."),
    ]
    rows = [[one.name, _pair(one), *_time_cells(times.get(one.name))] for one in numbers[:_MAX_ROWS]]
    return table(columns, rows, "Compiles by function in both runs")


def _time_cells(time: Difference | None) -> list[Cell]:
    return [Cell(""), Cell("")] if time is None else [_pair(time), Cell(change_text(time), time.change)]


def _pair(one: Difference) -> Cell:
    before, after = value_text(one, one.before), value_text(one, one.after)
    return Cell(before_and_after(before, after), one.after or 0.0)
