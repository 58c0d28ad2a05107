"""A comparison for the console, within 80 columns: the verdict, what changed, then where."""

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trackside.compare.comparison import Comparison
from trackside.compare.difference import Difference
from trackside.compare.metrics_console import render_metrics
from trackside.profiling.ledger_text import part_name
from trackside.text import count, num_bytes, percent, seconds, tail, without_controls, wrap

_STYLES = {"slower": "bold red", "faster": "bold green", "no difference": "bold", "cannot tell": "bold yellow"}
_NUM_CAUSES = 8
_NUM_ROWS = 8
_MIN_CHANGE = 0.01
_MIN_CHANGE_WITHOUT_INTERVAL = 0.05
_MARGIN = "  "


def render_comparison(comparison: Comparison, width: int = 80) -> RenderableType:
    """What the console shows of a comparison.

    Args:
        comparison: The comparison.
        width: The columns that it may take.
    """
    parts: list[RenderableType] = [_headline(comparison, width), *_figures(comparison, width)]
    if comparison.metrics:
        parts += [Text(), render_metrics(comparison.metrics, width)]
    if comparison.causes:
        parts += [Text(), Text("What changed", style="bold"), *_causes(comparison, width)]
    sections = (
        ("Where the time of the loop went, per step", comparison.parts, part_name),
        ("Device time per step, by scope", comparison.scopes, str),
        ("Device time per step, by operation", comparison.ops, str),
        ("Memory", comparison.memory, str),
        ("Compiles", comparison.compiles, str),
    )
    parts += [_section(*section, width) for section in sections if section[1]]
    if comparison.notes:
        parts += [Text(), *(_wrapped(f"Note: {note}", width, "yellow") for note in comparison.notes)]
    return Group(*parts)


def _headline(comparison: Comparison, width: int) -> Text:
    return _wrapped(comparison.headline, width, _STYLES[comparison.step_time.verdict])


def _figures(comparison: Comparison, width: int) -> list[Text]:
    time = comparison.step_time
    lines = []
    if time.before_s is not None and time.after_s is not None and time.change is not None:
        values = f"{seconds(time.before_s)} before, {seconds(time.after_s)} after"
        lines.append(f"undisturbed {time.per}: {values}: {_signed(time.change)}")
        if time.low is not None and time.high is not None:
            lines[-1] += f" (95 % interval {_signed(time.low)} to {_signed(time.high)})"
    if time.median_before_s is not None and time.median_after_s is not None:
        change = time.median_after_s / time.median_before_s - 1.0
        lines.append(
            f"median clean {time.per}, noise included: {seconds(time.median_before_s)} before, "
            f"{seconds(time.median_after_s)} after: {_signed(change)}"
        )
    lines.append(
        f"from {time.num_intervals[0]} and {time.num_intervals[1]} clean intervals of "
        f"{count(time.steps_per_interval, 'step')}; {time.num_left_out[0]} and {time.num_left_out[1]} left out "
        "(warm-up, compiles, captures, validation, checkpoints, epoch ends, memory samples)"
    )
    first_steps = [side.time_to_first_step for side in (comparison.before, comparison.after)]
    if any(first_steps):
        shown = ["not known" if first is None else seconds(first.wall_s) for first in first_steps]
        lines.append(f"time to first step: {shown[0]} before, {shown[1]} after")
    part = comparison.main_part
    if part is not None:
        interval = f" ({_interval(part)})" if part.low is not None else ""
        lines.append(f"most of it: {part_name(part.name)}, {_change(part)} per step{interval}")
    if comparison.max_slowdown is not None:
        limit = f"the {percent(comparison.max_slowdown)} limit"
        kept = f"not judged by {limit}" if time.verdict == "cannot tell" else f"within {limit}"
        lines.append(f"REGRESSION beyond {limit}" if comparison.is_regression else kept)
    return [_wrapped(line, width) for line in lines]


def _causes(comparison: Comparison, width: int) -> list[Text]:
    shown = [_wrapped(f"{cause.label}: {cause.title}", width) for cause in comparison.causes[:_NUM_CAUSES]]
    rest = len(comparison.causes) - len(shown)
    return [*shown, Text(f"{_MARGIN}and {rest} more")] if rest > 0 else shown


def _section(title: str, differences: Sequence[Difference], name_of: Callable[[str], str], width: int) -> Group:
    """A section's title and its rows: those that changed, or one line saying that nothing did."""
    changed = [one for one in differences if _is_worth_a_row(one, differences)]
    same = len(differences) - len(changed)
    parts: list[RenderableType] = [Text(), Text(title, style="bold")]
    if changed:
        parts.append(_table(changed[:_NUM_ROWS], name_of, width))
    rest = [f"{len(changed) - _NUM_ROWS} more that changed"] if len(changed) > _NUM_ROWS else []
    rest += [f"{same} without a difference beyond the noise"] if same else []
    if rest:
        parts.append(Text(f"{_MARGIN}{', '.join(rest)}", style="dim"))
    return Group(*parts)


def _is_worth_a_row(one: Difference, all_of_them: Sequence[Difference]) -> bool:
    """Whether it changed significantly, by a part of the whole that matters; without an interval, by much of itself."""
    if one.is_exact:
        return one.is_significant
    alike = [other for other in all_of_them if other.unit == one.unit]
    largest = max(max(abs(other.before or 0.0), abs(other.after or 0.0)) for other in alike)
    if abs(one.change) < _MIN_CHANGE * largest:
        return False
    if one.low is not None:
        return one.is_significant
    return one.relative_change is None or abs(one.relative_change) > _MIN_CHANGE_WITHOUT_INTERVAL


def _table(differences: Sequence[Difference], name_of: Callable[[str], str], width: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    has_phase = any(one.phase for one in differences)
    figures = (("before", 8), ("after", 8), ("change", 9), ("95 % interval", 20))
    name_width = max(width - sum(size + 1 for _, size in figures) - (10 if has_phase else 0) - 1, 8)
    table.add_column("", width=name_width, no_wrap=True)
    if has_phase:
        table.add_column("phase", width=9)
    for name, size in figures:
        table.add_column(name, justify="right", width=size, no_wrap=True)
    for one in differences:
        cells = [tail(_name(one, name_of), name_width), *([one.phase] if has_phase else [])]
        cells += [_value(one, one.before), _value(one, one.after), _change(one), _interval(one)]
        table.add_row(*map(Text, cells))  # a text as it is: in a plain string, rich would read brackets as markup
    return table


def _name(one: Difference, name_of: Callable[[str], str]) -> str:
    name = name_of(one.name)
    shown = f"{one.scope}: {name}" if one.scope else name
    return without_controls(shown.replace("\n", " "))


def _value(one: Difference, value: float | None) -> str:
    if value is None:
        return "none"
    return _with_unit(one, value)


def _with_unit(one: Difference, value: float) -> str:
    if one.unit == "bytes":
        return num_bytes(value)
    if one.unit == "count":
        return f"{value:.0f}"
    return seconds(value)


def _change(one: Difference) -> str:
    return f"{'+' if one.change >= 0 else '-'}{_with_unit(one, abs(one.change))}" if one.change else "0"


def _interval(one: Difference) -> str:
    if one.low is None or one.high is None:
        return "exact" if one.is_exact else ""
    low, high = (f"{'+' if end >= 0 else '-'}{_with_unit(one, abs(end))}" for end in (one.low, one.high))
    return f"{low} to {high}" if len(low) + len(high) <= 16 else f"{low} {high}"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _wrapped(text: str, width: int, style: str = "") -> Text:
    return Text("\n".join(wrap(without_controls(text), width, _MARGIN)), style=style)
