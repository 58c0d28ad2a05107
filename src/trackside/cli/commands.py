"""The commands by name, what `trackside --help` says of them, and what it says to a name that is none."""

import difflib
import os
from typing import NamedTuple

from trackside import __version__
from trackside.errors import ConfigError


class Command(NamedTuple):
    """Where a command is, and what it is for."""

    module: str
    function: str
    summary: str
    """One line for the list of commands, within 80 columns."""


COMMANDS = {
    "demo": Command("demo", "demo", "train on digits, and show what made the first run slow"),
    "report": Command("report", "report", "how a run went: verdicts, time, memory; report.html"),
    "watch": Command("watch", "watch", "follow a run that is going on"),
    "compare": Command("compare", "compare", "what got slower from one run to another; for CI"),
    "ls": Command("ls", "list_runs", "the runs in a directory: status, steps, speed, best metric"),
    "export": Command("export", "export", "metrics as CSV or Parquet, captures for Perfetto"),
    "trace": Command("trace", "trace", "where the device's time went in any JAX profile"),
    "doctor": Command("doctor", "doctor", "what a bug report needs: versions, devices, profiler"),
    "completion": Command("completion", "completion", "let the shell complete commands and options"),
    "version": Command("version", "version", "the version of trackside"),
}

_HELP = """\
usage: trackside COMMAND [ARGUMENTS]

Train JAX models with the stopwatch running. trackside {version}

{commands}

A run is the directory that LoggerConfig.log_path names. To begin with:
  trackside demo                        train something: the run is runs/demo
  trackside report runs/demo            what to do about its speed
  trackside ls runs                     what there is

`trackside COMMAND --help` has the arguments and examples of a command.

Exit codes: 0 fine, 1 a regression (compare), 2 an error, 130 Ctrl-C.
TRACKSIDE_DEBUG=1 shows the traceback of an error. NO_COLOR=1: no colours.
"""


def render_help() -> str:
    """What `trackside --help` prints."""
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    return _HELP.format(version=__version__, commands=listed)


def unknown_command(name: str) -> ConfigError:
    """The error for a command that is none, with what was probably meant."""
    nearest = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    if os.path.exists(name):
        hint = f"to see how a run went: trackside report {name}"
    elif nearest:
        hint = f"did you mean `trackside {nearest[0]}`?"
    else:
        hint = f"there are {', '.join(COMMANDS)}"
    return ConfigError(f"{name!r} is no command; {hint}")
