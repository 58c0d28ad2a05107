"""`trackside doctor`."""

from typing import TYPE_CHECKING, Annotated

import tyro
from rich.text import Text

from trackside.cli.arguments import Flag
from trackside.cli.output import open_console, print_json, print_lines, usable_width

if TYPE_CHECKING:
    from trackside.cli.doctor_checks import Check

_MARKS = {"ok": " ", "note": "-", "failed": "!"}
_STYLES = {"ok": "", "note": "yellow", "failed": "red"}


def doctor(
    json: Flag = False,
    timeout: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 90.0,
) -> None:
    """Print what belongs in a bug report: versions, devices, whether the profiler works, disk space.

    Takes a tiny profile in a separate process to test the profiler. Items that cannot be determined are marked as such.
    Changes nothing, and prints no secrets.

    Examples:
      trackside doctor
      trackside doctor --json > doctor.json

    Args:
        json: Print the results as JSON.
        timeout: How long to wait for jax and its profiler.
    """
    from trackside.cli.doctor_checks import examine

    checks = examine(timeout)
    if json:
        print_json({"format": "trackside.doctor/1", "checks": [check.to_dict() for check in checks]})
        return
    console = open_console()
    width = max(len(check.name) for check in checks)
    for check in checks:
        print_lines(console, _render(check, width, usable_width(console)))


def _render(check: "Check", name_width: int, width: int) -> Text:
    from trackside.report.terminal_lines import printable
    from trackside.text import wrap

    style = _STYLES[check.status]
    margin = " " * (name_width + 4)
    lines = [line for text in check.lines for line in wrap(text, width - len(margin), hanging="  ")]
    text = Text(f"{_MARKS[check.status]} {check.name:<{name_width}}  ", style=f"bold {style}".strip())
    text.append(f"\n{margin}".join(lines), style=f"not bold {style}".strip())
    return printable(text)
