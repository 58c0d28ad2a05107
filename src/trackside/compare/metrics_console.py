"""Losses and metrics of two runs for the console."""

from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from trackside.compare.metric_changes import MetricChange, MetricPair
from trackside.compare.metric_series import MetricValue
from trackside.text import count, duration, four_digits, tail, without_controls, wrap

_NUM_METRICS = 4
_STEP = "at step"
_COLUMNS = (("before", 9), (_STEP, 10), ("after", 9), (_STEP, 10), ("change", 8), ("", 6))
_MIN_WIDTH_WITH_STEPS = 76
_STYLES = {"better": "green", "worse": "red"}
_WORDS = {"after": "better", "before": "worse", "neither": "same"}


def render_metrics(changes: Sequence[MetricChange], width: int) -> Group:
    """The first metrics with their values, and how many more there are.

    Args:
        changes: The metrics.
        width: The columns that it may take.
    """
    columns = [*_COLUMNS] if width >= _MIN_WIDTH_WITH_STEPS else [one for one in _COLUMNS if one[0] != _STEP]
    name_width = max(width - sum(size + 1 for _, size in columns) - 1, 8)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", width=name_width, no_wrap=True)
    for name, size in columns:
        table.add_column(name, justify="right" if name else "left", width=size, no_wrap=True)
    kept = [index for index, one in enumerate(_COLUMNS) if one in columns]
    for change in changes[:_NUM_METRICS]:
        table.add_row(Text(tail(_plain(change.label), name_width), style="bold"))
        for name, cells in _rows(change):
            table.add_row(Text(tail(f"  {name}", name_width)), *(cells[index] for index in kept))
    rest = len(changes) - _NUM_METRICS
    notes = [_note(changes[:_NUM_METRICS])]
    notes += [f"{count(rest, 'more metric')}; --json has all of them"] if rest > 0 else []
    shown = [Text("\n".join(wrap(f"  {note}", width, "  ")), style="dim") for note in notes]
    return Group(Text("Losses and metrics", style="bold"), table, *shown)


def _rows(change: MetricChange) -> Iterator[tuple[str, list[Text]]]:
    for title, pair in change.titled_pairs():
        yield title, _cells(pair, change)
    first, second, relative = change.reached.before, change.reached.after, change.reach_time_change
    if first is not None and second is not None and relative is not None:
        figures = [duration(first.time_s), _step(first), duration(second.time_s), _step(second), _signed(relative), ""]
        yield f"time to {four_digits(change.reached_value or 0.0)}", [Text(figure) for figure in figures]


def _cells(pair: MetricPair, change: MetricChange) -> list[Text]:
    better = pair.better(change.direction)
    word = _WORDS[better] if better is not None else ""
    figures = [_value(pair.before), _step(pair.before), _value(pair.after), _step(pair.after)]
    shown = "" if pair.relative_change is None else _signed(pair.relative_change)
    return [*map(Text, (*figures, shown)), Text(word, style=_STYLES.get(word, ""))]


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _value(one: MetricValue | None) -> str:
    if one is None:
        return "none"
    return "nonfinite" if one.value is None else four_digits(one.value)


def _step(one: MetricValue | None) -> str:
    return "" if one is None else f"{one.step:,}"


def _note(changes: Sequence[MetricChange]) -> str:
    higher = [_plain(one.label) for one in changes if one.direction == "max"]
    which = f"higher is better for {', '.join(higher)}, lower for the others" if higher else "lower is better"
    num_steps = max((one.num_mean_steps or 1 for one in changes), default=1)
    over = f"; training: means over {num_steps} steps" if num_steps > 1 else ""
    rule = "by a step or within a time, each run has the last value that it logged until then"
    return f"{which}{over}; {rule}; one run each, so no interval"


def _plain(text: str) -> str:
    return without_controls(text.replace("\n", " "))
