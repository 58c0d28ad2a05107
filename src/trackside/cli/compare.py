"""`trackside compare`."""

from pathlib import Path
from typing import Annotated

import tyro

from trackside.cli.arguments import Flag, OptionalFile
from trackside.cli.output import open_console, print_json, print_lines, print_path, usable_width
from trackside.errors import ConfigError

REGRESSION = 1
"""The exit code that says so."""


def compare(
    a: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="A")],
    b: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="B")],
    max_slowdown: Annotated[str | None, tyro.conf.arg(metavar="SHARE", help_behavior_hint="")] = None,
    json: Flag = False,
    html: OptionalFile = None,
) -> int:
    """Say what got slower from one run to another, or from one trace to another, and why.

    Exit codes: 0 without a regression, 1 with one, 2 after an error. Without --max-slowdown nothing is a regression.

    Examples:
      trackside compare runs/before runs/after
      trackside compare runs/main runs/branch --max-slowdown 5%      in a CI job
      trackside compare runs/before runs/after --json > difference.json
      trackside compare runs/before runs/after --html difference.html

    Args:
        a: The run to compare with, or a directory with a trace.
        b: The run that may have become slower, or a directory with a trace.
        max_slowdown: How much slower a step may become, such as 5% or 0.05, before it is a regression.
        json: Print the differences as JSON.
        html: Write a page with the differences as charts and tables, one file that opens without network.
    """
    limit = None if max_slowdown is None else check_limit(max_slowdown)
    from trackside.compare import compare_runs

    comparison = compare_runs(a, b, max_slowdown=limit)
    console = open_console()
    if json:
        print_json(comparison.to_dict())
    else:
        print_lines(console, comparison.render(usable_width(console)))
    if html is not None:
        from trackside.report.html import write_comparison_html

        page = write_comparison_html(comparison, html)
        if not json:
            print_path(console, "page", page)
    return REGRESSION if comparison.is_regression else 0


def check_limit(text: str) -> str:
    """Refuse a bare number that was meant as percent: 5 is 500 %, a limit that nothing ever exceeds.

    Raises:
        ConfigError: It is 1 or more, without a percent sign.
    """
    try:
        number = float(text)
    except ValueError:  # with a percent sign, or nothing that the comparison can read
        return text
    if number >= 1:
        raise ConfigError(f"--max-slowdown: {text} is {100 * number:g} %; write {text}% or {number / 100:g}")
    return text
