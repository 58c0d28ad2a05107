"""`trackside compare`."""

from pathlib import Path
from typing import Annotated

import tyro

from trackside.cli.arguments import Flag, OptionalFile
from trackside.cli.output import open_console, print_json, print_lines, print_path, usable_width
from trackside.errors import ConfigError

REGRESSION = 1
"""The exit code for a regression."""


def compare(
    a: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="A")],
    b: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="B")],
    max_slowdown: Annotated[str | None, tyro.conf.arg(metavar="SHARE", help_behavior_hint="")] = None,
    json: Flag = False,
    html: OptionalFile = None,
) -> int:
    """Show what got slower between two runs, or between two traces, and why.

    Exit codes: 0 no regression, 1 regression, 2 error. There is only a regression if --max-slowdown is given.

    Examples:
      trackside compare runs/before runs/after
      trackside compare runs/main runs/branch --max-slowdown 5%      in a CI job
      trackside compare runs/before runs/after --json > difference.json
      trackside compare runs/before runs/after --html difference.html

    Args:
        a: The baseline: a run, or a directory with a trace.
        b: What to compare with it: a run, or a directory with a trace.
        max_slowdown: How much slower a step may get before it is a regression, such as 5% or 0.05.
        json: Print the differences as JSON.
        html: Write the differences as a self-contained page with charts and tables.
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
    """Reject a bare number that was meant as a percentage: 5 would be 500 %, a limit that nothing ever exceeds.

    Raises:
        ConfigError: It is 1 or more, without a percent sign.
    """
    try:
        number = float(text)
    except ValueError:  # with a percent sign, or something that the comparison rejects
        return text
    if number >= 1:
        raise ConfigError(f"--max-slowdown: {text} is {100 * number:g} %; write {text}% or {number / 100:g}")
    return text
