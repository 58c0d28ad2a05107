"""Two runs compared, as one self-contained HTML page of the same make as the report."""

from collections.abc import Iterator
from pathlib import Path

from trackside.compare import Comparison
from trackside.compare.sides import Side
from trackside.profiling.ledger_text import part_name
from trackside.report.html.comparison import configs, device_times, metrics, resources, step_times, time_parts, verdict
from trackside.report.html.comparison.values import (
    before_and_after,
    change_text,
    interval_text,
    signed_percent,
)
from trackside.report.html.document import render_document, tile, write_document
from trackside.report.html.markup import Html, element, path_text, term
from trackside.text import four_digits, percent, seconds

_VERDICTS = {
    "slower": ("bad", "The whole confidence interval of the change is above zero."),
    "faster": ("good", "The whole confidence interval of the change is below zero."),
    "no difference": ("live", "The confidence interval of the change includes zero: the difference may be noise."),
    "cannot tell": ("fair", "The runs are too short, or the machine was too busy, to judge."),
}


def write_comparison_html(comparison: Comparison, path: Path) -> Path:
    """Write a comparison as one HTML file.

    Args:
        comparison: What `trackside.compare.compare_runs` gives.
        path: The file. It is replaced whole or not at all; its folder is created if needed.

    Returns:
        The file.

    Raises:
        ConfigError: The file cannot be written.
    """
    return write_document(render_comparison_html(comparison), Path(path), "the comparison")


def render_comparison_html(comparison: Comparison) -> str:
    """A comparison as an HTML document.

    Args:
        comparison: What `trackside.compare.compare_runs` gives.
    """
    builders = (
        verdict.build,
        metrics.build,
        step_times.build,
        time_parts.build,
        device_times.build,
        resources.build_memory,
        resources.build_compiles,
        configs.build,
    )
    return render_document(
        f"{_title(comparison)} · trackside", _header(comparison), [build(comparison) for build in builders]
    )


def _title(comparison: Comparison) -> str:
    return f"{comparison.before.name} → {comparison.after.name}"


def _header(comparison: Comparison) -> Html:
    """Which runs, and the main figures of how they differ."""
    word = comparison.step_time.verdict
    kind, explanation = _VERDICTS[word]
    title = element(
        "h1",
        _title(comparison),
        " ",
        element("span", term(word, explanation), class_=f"status {kind}"),
    )
    facts = [_fact("before", comparison.before), _fact("after", comparison.after)]
    tiles = element("dl", list(_tiles(comparison)), class_="tiles")
    return element("header", title, element("p", facts, class_="facts"), tiles, class_="top")


def _fact(which: str, side: Side) -> Html:
    return element("span", f"{which}: ", path_text(side.path), f", {side.num_steps:,} steps")


def _tiles(comparison: Comparison) -> Iterator[Html]:
    time = comparison.step_time
    if time.change is not None:
        interval = ""
        if time.low is not None and time.high is not None:
            interval = f"95 % interval {signed_percent(time.low)} to {signed_percent(time.high)}"
            interval = f"only an estimate; {interval}" if time.problem else interval
        explanation = f"How much longer an undisturbed {time.per} takes in the second run; negative is faster."
        yield tile(term("Change", explanation), signed_percent(time.change), interval)
    if time.before_s is not None and time.after_s is not None:
        explanation = f"The shortest time that a {time.per} takes without noise, which only ever adds time."
        title = term(f"Undisturbed {time.per}", explanation)
        yield tile(title, before_and_after(seconds(time.before_s), seconds(time.after_s)), "before → after")
    if time.median_before_s is not None and time.median_after_s is not None:
        share = signed_percent(time.median_after_s / time.median_before_s - 1.0)
        values = before_and_after(seconds(time.median_before_s), seconds(time.median_after_s))
        yield tile(term(f"Median {time.per}", "Over all clean steps, noise included."), values, f"{share}, with noise")
    yield from _part_tiles(comparison)
    yield from _metric_tiles(comparison)
    if comparison.max_slowdown is not None:
        word = "Regression" if comparison.is_regression else "Passed"
        explanation = "A regression is a statistically significant slowdown beyond the limit."
        yield tile(term("Limit", explanation), word, f"at most {percent(comparison.max_slowdown)} slower")


def _metric_tiles(comparison: Comparison) -> Iterator[Html]:
    """The best value of the metric by which the runs are judged."""
    judged = next((one for one in comparison.metrics if one.is_judged), None)
    if judged is None or judged.best.before is None or judged.best.after is None:
        return
    values = [four_digits(one.value) for one in (judged.best.before, judged.best.after) if one.value is not None]
    if len(values) == 2:
        detail = f"before → after; {'lower' if judged.direction == 'min' else 'higher'} is better"
        yield tile(f"Best {judged.label}", before_and_after(*values), detail)


def _part_tiles(comparison: Comparison) -> Iterator[Html]:
    part = comparison.main_part
    if part is not None:
        explanation = "The part of the loop's time that changed most in the direction of the verdict."
        interval = interval_text(part)
        detail = f"{part_name(part.name)}, per step; {interval}" if interval else f"{part_name(part.name)}, per step"
        yield tile(term("Most of it", explanation), change_text(part), detail)
    ledgers = comparison.before.ledger, comparison.after.ledger
    idle = [None if ledger is None else ledger.idle_share for ledger in ledgers]
    if idle[0] is not None and idle[1] is not None:
        explanation = "The share of the time between steps in which the device was idle."
        yield tile(
            term("Device idle", explanation), before_and_after(percent(idle[0]), percent(idle[1])), "before → after"
        )
