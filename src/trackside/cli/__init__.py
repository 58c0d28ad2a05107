"""The `trackside` command: runs a command, and reports errors in one line.

Each command is a function in its own module, which is imported when the command runs. `trackside --help` imports none
of them, and needs no jax.
"""

import contextlib
import functools
import importlib
import inspect
import io
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from trackside.cli.commands import COMMANDS, render_help, unknown_command
from trackside.errors import TracksideError

FINE = 0
ERROR = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
"""What a shell reports for a program whose output is no longer read, as in `trackside ls | head`."""

DEBUG = "TRACKSIDE_DEBUG"
"""If set to anything but 0, errors show their traceback."""


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: The words after `trackside`.

    Returns:
        The exit code: 0 for success, 1 if a comparison found a regression, 2 after an error, 130 after Ctrl-C, 141 if
        the reader of the output closed the pipe.
    """
    _replace_unencodable_characters()
    try:
        code = _dispatch(list(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if os.environ.get(DEBUG, "0") not in ("", "0"):
            raise
        sys.stderr.write(f"trackside: {_in_one_line(error)}\n")
        return ERROR


def load_command(name: str) -> Callable[..., int | None]:
    """The function of a command."""
    return getattr(importlib.import_module(f"trackside.cli.{COMMANDS[name].module}"), COMMANDS[name].function)


def description_of(function: Callable[..., Any]) -> str:
    """The help of a command above its arguments: its docstring up to them, including the examples."""
    paragraphs = (inspect.getdoc(function) or "").partition("\nArgs:")[0].rstrip().split("\n\n")
    return "\n\n".join(text if text.startswith("Examples:") else textwrap.fill(text, 79) for text in paragraphs)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(render_help())
        return FINE if arguments else ERROR
    name = {"--version": "version"}.get(arguments[0], arguments[0])
    if name not in COMMANDS:
        raise unknown_command(name)
    return _call(load_command(name), name, arguments[1:])


def _call(function: Callable[..., int | None], name: str, arguments: list[str]) -> int:
    import tyro

    parse = functools.partial(
        tyro.cli,
        function,
        prog=f"trackside {name}",
        description="",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    if not {"-h", "--help"}.isdisjoint(arguments):
        return _show_help(parse, description_of(function))
    try:
        return parse() or FINE
    except SystemExit as end:  # after bad arguments
        return end.code if isinstance(end.code, int) else FINE


def _show_help(parse: Callable[[], object], description: str) -> int:
    """Print what tyro says of a command, in lines that fit: it gives paragraphs and the usage one long line each."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        parse()
    usage, _, rest = printed.getvalue().partition("\n\n")
    sys.stdout.write(f"{description}\n\n{textwrap.fill(usage, 80, subsequent_indent='    ')}\n\n{rest}")
    return FINE


def _in_one_line(error: Exception) -> str:
    if isinstance(error, TracksideError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"unexpected {what} (this is a bug: {DEBUG}=1 shows where; include `trackside doctor` in a bug report)"


def _replace_unencodable_characters() -> None:
    """Show a question mark where the terminal cannot encode a character, instead of failing at a bar of blocks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # pytest and notebooks replace the streams
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """Let Python flush at exit without another error about the closed pipe."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # no real file behind it
        return
