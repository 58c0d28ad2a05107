"""The commands by name, the text of `trackside --help`, and the error for an unknown command."""

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
    "demo": Command("demo", "demo", "train on digits twice, and show what made the first run slow"),
    "report": Command("report", "report", "how a run went: findings, time, memory; writes report.html"),
    "watch": Command("watch", "watch", "follow a run while it trains"),
    "compare": Command("compare", "compare", "what got slower between two runs; can fail a CI job"),
    "ls": Command("ls", "list_runs", "list runs: status, steps, speed, best metric"),
    "export": Command("export", "export", "export metrics to CSV or Parquet, captures to Perfetto"),
    "trace": Command("trace", "trace", "where the device time went in any JAX profile"),
    "doctor": Command("doctor", "doctor", "versions, devices, profiler: what to put in a bug report"),
    "completion": Command("completion", "completion", "shell completion for commands and options"),
    "version": Command("version", "version", "print the version"),
}

_HELP = """\
usage: trackside COMMAND [ARGUMENTS]

Train JAX models with the stopwatch running. trackside {version}

{commands}

A run is the directory that LoggerConfig.log_path names. To get started:
  trackside demo                        train a small model into runs/demo
  trackside report runs/demo            see where its time went
  trackside ls runs                     list all runs

Run `trackside COMMAND --help` for the arguments of a command, with examples.

Exit codes: 0 success, 1 regression (compare), 2 error, 130 Ctrl-C.
TRACKSIDE_DEBUG=1 shows the traceback of an error, NO_COLOR=1 turns colors off.
"""


def render_help() -> str:
    """What `trackside --help` prints."""
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    return _HELP.format(version=__version__, commands=listed)


def unknown_command(name: str) -> ConfigError:
    """The error for an unknown command, with a suggestion."""
    nearest = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    if os.path.exists(name):
        hint = f"to see how a run went, use `trackside report {name}`"
    elif nearest:
        hint = f"did you mean `trackside {nearest[0]}`?"
    else:
        hint = f"the commands are {', '.join(COMMANDS)}"
    return ConfigError(f"unknown command {name!r}; {hint}")
