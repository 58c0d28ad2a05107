"""`trackside trace`."""

from pathlib import Path
from typing import Annotated

import tyro

from trackside.cli.arguments import Flag, OptionalText
from trackside.cli.output import open_console, print_json, print_lines, usable_width


def trace(
    path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="TRACE")],
    program: OptionalText = None,
    json: Flag = False,
) -> None:
    """Print where the device time went in a trace, including traces that trackside did not take.

    Examples:
      trackside trace runs/demo                the newest capture of a run
      trackside trace /tmp/tensorboard         what jax.profiler.start_trace wrote
      trackside trace host.xplane.pb --program jit_train_step
      trackside trace runs/demo --json         all tables, for scripts

    Args:
        path: A log directory, the directory of a session, or a *.xplane.pb file.
        program: Include only executions of this program, such as jit_train_step (default: all).
        json: Print the tables as JSON.
    """
    from trackside.trace import analyse_trace, render_report

    report = analyse_trace(path, program=program)
    if json:
        print_json(report.to_dict())
    else:
        console = open_console()
        print_lines(console, render_report(report, width=usable_width(console)))
