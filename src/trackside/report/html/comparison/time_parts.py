"""Where the time of the loop went in two runs."""

from trackside.compare import Comparison, Difference
from trackside.profiling.ledger_text import part_name
from trackside.profiling.ledger_totals import COMPILE
from trackside.report.html.comparison.changes import change_chart, change_table, values_chart
from trackside.report.html.comparison.values import change_text, is_relevant, judge, largest_value, run_labels
from trackside.report.html.markup import element, joined
from trackside.report.html.section import Section, panel

_COLOURS = "Red is more, green is less, gray is not significant."


def build(comparison: Comparison) -> Section:
    """The section."""
    if not comparison.parts:
        text = "Captures do not record the loop; compare the runs."
        if comparison.before.kind == "run":
            text = "Both runs need a ledger. A training with a folder writes one about every ten seconds."
        return Section("time", "Where the time went", missing=[joined(text)])
    # Compile time is divided by all steps of a run: it would dwarf the rest, and a longer run has less of it per step.
    parts = sorted((one for one in comparison.parts if one.name != COMPILE), key=_size, reverse=True)
    has_interval = any(one.low is not None for one in parts)
    charts = []
    if parts:
        values = values_chart(
            "parts-chart", "Seconds per step by part, in both runs", parts, _name, run_labels(comparison)
        )
        changes = change_chart("parts-change-chart", "Change of each part, with its interval", parts, _name)
        charts = [values, changes]
    panels = (
        [
            panel("Before and after", chart=charts[0]),
            panel("Change, with its 95 % interval" if has_interval else "Change", chart=charts[1], note=_COLOURS),
        ]
        if charts
        else []
    )
    rows = sorted(comparison.parts, key=_size, reverse=True)
    content = [
        element("div", panels, class_="grid"),
        panel(
            "Part by part",
            change_table("part", rows, _name, "Seconds per step by part of the ledger"),
            note="Per step, on the training thread. Compiling is over the whole run and not drawn above.",
        ),
    ]
    return Section("time", "Where the time went", content, lead=_lead(parts), charts=charts)


def _name(one: Difference) -> str:
    return part_name(one.name)


def _size(one: Difference) -> float:
    return max(one.before or 0.0, one.after or 0.0)


def _lead(parts: list[Difference]) -> str:
    largest = largest_value(parts)
    changed = [one for one in parts if is_relevant(judge(one, largest))]
    if not changed and any(one.low is None for one in parts):
        return "The runs are too short for confidence intervals."
    if not changed:
        return "No part of the loop's time changed beyond the noise."
    changed.sort(key=lambda one: -abs(one.change))
    return "What changed beyond the noise: " + ", ".join(f"{_name(one)} {change_text(one)}" for one in changed) + "."
