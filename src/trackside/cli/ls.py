"""`trackside ls`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.text import Text

from trackside.cli.arguments import Flag
from trackside.cli.output import open_console, print_json, print_lines, usable_width
from trackside.errors import ConfigError

if TYPE_CHECKING:
    from trackside.cli.run_glance import Glance

DEFAULT = Path("runs")
_STATUS_WIDTH = 13
_FIXED_WIDTH = 57 + _STATUS_WIDTH


def list_runs(
    directory: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="[DIR]", help_behavior_hint="")] = DEFAULT,
    json: Flag = False,
) -> None:
    """List the runs below a directory, newest first: status, steps, speed, best metric, start time.

    The best metric is the one that a checkpoint or early stopping monitors, otherwise the validation loss, otherwise
    the training loss. The speed is that of a median clean step, the step time of `trackside report`.

    Examples:
      trackside ls                             list the runs below ./runs
      trackside ls /scratch/experiments
      trackside ls | head
      trackside ls --json | jq -r '.runs[] | select(.status == "dead") | .path'

    Args:
        directory: Where to look (default: runs).
        json: Print the list as JSON.
    """
    from trackside.cli.run_glance import glance_at
    from trackside.runs import find_runs

    if not directory.is_dir():
        hint = "pass the directory that contains the runs" if directory == DEFAULT else "check the path"
        raise ConfigError(f"{directory}: no such directory; {hint}")
    glances = [glance_at(path) for path in reversed(find_runs(directory))]
    if json:
        print_json({"format": "trackside.runs/1", "runs": [glance.to_dict() for glance in glances]})
        return
    console = open_console()
    if not glances:
        console.print(f"no runs below {directory}; a training writes one if it is given a folder")
        return
    print_lines(console, _table(directory, glances, usable_width(console)))


def _table(directory: Path, glances: "list[Glance]", width: int) -> Text:
    from trackside.report.terminal_lines import join, printable

    longest = max(len(_name(directory, glance)) for glance in glances)
    name_width = max(min(longest, width - _FIXED_WIDTH), 10)
    head = f"{'run':<{name_width}}  {'status':<{_STATUS_WIDTH}}  {'steps':>9}  {'steps/s':>7}  {'best':<20}  began"
    lines = [Text(head, style="dim"), *(_row(directory, glance, name_width) for glance in glances)]
    if not all(glance.is_best_of_all for glance in glances):
        lines.append(Text("* best of the most recent rows only", style="dim"))
    return printable(join(lines))


def _row(directory: Path, glance: "Glance", name_width: int) -> Text:
    from trackside.report.terminal_lines import fit, fit_tail
    from trackside.runs.status_words import RunStatus
    from trackside.text import moment, three_digits

    speed = "" if glance.steps_per_second is None else three_digits(glance.steps_per_second)
    best = "" if glance.best is None else f"{glance.best.label} {glance.best.value:.4g}"
    best += "" if glance.is_best_of_all else "*"
    style = RunStatus(glance.status).style
    return Text.assemble(
        fit_tail(_name(directory, glance), name_width),
        "  ",
        (fit(glance.status, _STATUS_WIDTH), style),
        f"  {glance.step:>9,}  {speed:>7}  {fit(best, 20)}  {moment(glance.started_at)[5:]}",
    )


def _name(directory: Path, glance: "Glance") -> str:
    relative = glance.path.relative_to(directory)
    return str(relative) if relative.parts else glance.path.resolve().name
