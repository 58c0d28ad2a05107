"""Two runs compared, as one self-contained HTML page of the same make as the report."""

from collections.abc import Iterator
from pathlib import Path

from trackside.compare import Comparison
from trackside.compare.sides import Side
from trackside.errors import ConfigError
from trackside.files import write_atomically
from trackside.profiling.ledger_text import part_name
from trackside.report.html import (
    comparison_configs,
    comparison_device,
    comparison_ledger,
    comparison_resources,
    comparison_step_time,
    comparison_verdict,
)
from trackside.report.html.comparison_values import (
    before_and_after,
    change_text,
    interval_text,
    signed_percent,
)
from trackside.report.html.markup import Child, Html, element, path_text, term
from trackside.report.html.page import render_document
from trackside.text import percent, seconds

_VERDICTS = {
    "slower": ("bad", "The whole interval of the change lies above zero."),
    "faster": ("good", "The whole interval of the change lies below zero."),
    "no difference": ("live", "The interval of the change holds zero: what differs may be noise."),
    "cannot tell": ("fair", "The runs are too short or the machine was too busy for a judgement."),
}


def write_comparison_html(comparison: Comparison, path: Path) -> Path:
    """Write a comparison as one HTML file.

    Args:
        comparison: What `trackside.compare.compare_runs` gives.
        path: The file. It is replaced whole or not at all; its folder is made if it is not there.

    Returns:
        The file.

    Raises:
        ConfigError: The file cannot be written.
    """
    target = Path(path)
    try:
        write_atomically(target, render_comparison_html(comparison))
    except OSError as error:
        raise ConfigError(
            f"path: the comparison cannot be written to {str(target)!r} ({error.strerror}); give another file"
        ) from error
    return target


def render_comparison_html(comparison: Comparison) -> str:
    """A comparison as an HTML document.

    Args:
        comparison: What `trackside.compare.compare_runs` gives.
    """
    builders = (
        comparison_verdict.build,
        comparison_step_time.build,
        comparison_ledger.build,
        comparison_device.build,
        comparison_resources.build_memory,
        comparison_resources.build_compiles,
        comparison_configs.build,
    )
    return render_document(
        f"{_title(comparison)} · trackside", _header(comparison), [build(comparison) for build in builders]
    )


def _title(comparison: Comparison) -> str:
    return f"{comparison.before.name} → {comparison.after.name}"


def _header(comparison: Comparison) -> Html:
    """Which runs, and the figures that sum up how they differ."""
    verdict = comparison.step_time.verdict
    kind, explanation = _VERDICTS[verdict]
    title = element(
        "h1",
        _title(comparison),
        " ",
        element("span", term(verdict, explanation), class_=f"status {kind}"),
    )
    facts = [_fact("before", comparison.before), _fact("after", comparison.after)]
    tiles = element("dl", list(_tiles(comparison)), class_="tiles")
    return element("header", title, element("p", facts, class_="facts"), tiles, class_="top")


def _fact(which: str, side: Side) -> Html:
    return element("span", f"{which}: ", path_text(side.path), f", {side.num_steps:,} steps")


def _tile(title: Child, value: str, detail: str = "") -> Html:
    shown = element("dd", value, element("small", detail) if detail else None)
    return element("div", element("dt", title), shown)


def _tiles(comparison: Comparison) -> Iterator[Html]:
    time = comparison.step_time
    if time.change is not None:
        interval = ""
        if time.low is not None and time.high is not None:
            interval = f"95 % interval {signed_percent(time.low)} to {signed_percent(time.high)}"
            interval = f"an estimate only; {interval}" if time.problem else interval
        explanation = f"How much longer an undisturbed {time.per} takes in the second run; less than zero is faster."
        yield _tile(term("Change", explanation), signed_percent(time.change), interval)
    if time.before_s is not None and time.after_s is not None:
        explanation = f"The time below which a run has no {time.per}s: noise only ever adds time."
        title = term(f"Undisturbed {time.per}", explanation)
        yield _tile(title, before_and_after(seconds(time.before_s), seconds(time.after_s)), "before → after")
    if time.median_before_s is not None and time.median_after_s is not None:
        share = signed_percent(time.median_after_s / time.median_before_s - 1.0)
        values = before_and_after(seconds(time.median_before_s), seconds(time.median_after_s))
        yield _tile(term(f"Median {time.per}", "Of all clean steps, noise included."), values, f"{share}, with noise")
    yield from _part_tiles(comparison)
    if comparison.max_slowdown is not None:
        word = "Regression" if comparison.is_regression else "Passed"
        explanation = "A regression is slower for sure, and by more than the limit."
        yield _tile(term("Limit", explanation), word, f"at most {percent(comparison.max_slowdown)} slower")


def _part_tiles(comparison: Comparison) -> Iterator[Html]:
    part = comparison.main_part
    if part is not None:
        explanation = "The part of the loop's time that changed most in the direction of the verdict."
        interval = interval_text(part)
        detail = f"{part_name(part.name)}, per step; {interval}" if interval else f"{part_name(part.name)}, per step"
        yield _tile(term("Most of it", explanation), change_text(part), detail)
    ledgers = comparison.before.ledger, comparison.after.ledger
    idle = [None if ledger is None else ledger.idle_share for ledger in ledgers]
    if idle[0] is not None and idle[1] is not None:
        explanation = "The share of the time between steps in which the device did nothing."
        yield _tile(
            term("Device idle", explanation), before_and_after(percent(idle[0]), percent(idle[1])), "before → after"
        )
