"""Device time of two captures: the scopes and operations that changed most."""

from collections.abc import Sequence

from trackside.compare import Comparison, Difference
from trackside.report.html.charts import Chart
from trackside.report.html.comparison.changes import MAX_AXIS_LABEL, change_chart, change_table
from trackside.report.html.comparison.values import Judgement, is_relevant, judge, largest_value
from trackside.report.html.markup import Child, Html, code, element, joined, path_text
from trackside.report.html.section import Section, panel
from trackside.text import count, head

_MAX_BARS = 12
_MAX_ROWS = 20
_MIN_NAME = 12
"""Characters of an operation's name next to a bar that are always shown, however long its scope is."""


def build(comparison: Comparison) -> Section:
    """The section."""
    if not comparison.scopes:
        how = code("TrainerConfig(callbacks=[JaxProfilerConfig(profile_first_step=10, profile_n_steps=10)])")
        return Section("device", "Device time", missing=[joined("Both runs need a capture. Take one with ", how, ".")])
    content: list[Child] = []
    charts: list[Chart] = []
    for noun, differences in (("scope", comparison.scopes), ("operation", comparison.ops)):
        if differences:
            ranked = _ranked(differences)
            title = f"{noun.capitalize()}s that changed most"
            charts.append(change_chart(f"{noun}s-change-chart", title, ranked[:_MAX_BARS], _bar_name))
            content.append(_box(noun, title, ranked, charts[-1]))
    lead = f"{_change_sentence('scope', comparison.scopes)} {_change_sentence('operation', comparison.ops)}"
    return Section("device", "Device time", [*content, _sources(comparison)], lead=lead, charts=charts)


def _ranked(differences: Sequence[Difference]) -> list[Difference]:
    """Significant changes that matter first, then the largest changes."""
    largest = largest_value(differences)
    return sorted(differences, key=lambda one: (not is_relevant(judge(one, largest)), -abs(one.change)))


def _change_sentence(noun: str, differences: Sequence[Difference]) -> str:
    """How many changed."""
    if not differences:
        return ""
    judgements = _judged(differences)
    if "no interval" in judgements and not any(map(is_relevant, judgements)):
        return f"The changes of {count(len(differences), noun)} have no confidence interval."
    changed = sum(map(is_relevant, judgements))
    return f"{changed or 'None'} of {count(len(differences), noun)} changed beyond the noise."


def _judged(differences: Sequence[Difference]) -> list[Judgement]:
    largest = largest_value(differences)
    return [judge(one, largest) for one in differences]


def _box(noun: str, title: str, ranked: Sequence[Difference], chart: Chart) -> Html:
    """Chart and table; folded away if they show nothing but noise."""
    shown = ranked[:_MAX_ROWS]
    largest = largest_value(ranked)
    rows = change_table(noun, shown, _row_name, f"{title}: device time per step", largest)
    note = "Device time per step, median of the captured steps. Red is more, green is less, gray is not significant."
    if len(ranked) > len(shown):
        note += f" The first {len(shown)} of {len(ranked):,}; trackside compare --json has all of them."
    if any(is_relevant(one) or one == "no interval" for one in _judged(ranked)):
        return panel(title, rows, chart=chart, note=note)
    summary = element("summary", f"{noun.capitalize()}s: none changed beyond the noise")
    return element("details", summary, chart.place(), rows, element("p", note, class_="note"))


def _bar_name(one: Difference) -> str:
    """The name next to a bar: short, because the table has it in full."""
    if one.scope:
        scope = one.scope.rpartition("/")[2]
        room = max(MAX_AXIS_LABEL - len(scope) - 2, _MIN_NAME)
        return f"{head(one.name, room)}, {scope}"
    outer, _, inner = one.name.rpartition("/")
    return f"{'…/' if outer else ''}{inner} ({one.phase})"


def _row_name(one: Difference) -> Html:
    where = f"{one.scope}, {one.phase}" if one.scope else one.phase
    return joined(path_text(one.name), " ", element("span", path_text(where), class_="soft"))


def _sources(comparison: Comparison) -> Html:
    sources = [side.trace.source for side in (comparison.before, comparison.after) if side.trace is not None]
    return element("p", "From the captures in ", code(sources[0]), " and ", code(sources[1]), ".", class_="note")
