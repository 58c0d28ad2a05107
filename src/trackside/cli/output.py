"""The output of commands: a terminal, or a pipe that may be closed early."""

import sys
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from rich.console import Console, RenderableType

MAX_WIDTH = 120
"""Longer lines are hard to read."""


class OutputConsole(Console):
    """A console that lets the caller handle a closed pipe.

    Rich would exit with code 1, which means a regression.
    """

    def on_broken_pipe(self) -> NoReturn:
        """Tell the caller."""
        raise BrokenPipeError


def open_console() -> OutputConsole:
    """The console of a command: colors on a terminal, plain text in a pipe."""
    # Names of runs, scopes and operations are shown as they are, brackets and colons included.
    return OutputConsole(markup=False, emoji=False, highlight=False)


def usable_width(console: Console) -> int:
    """The number of columns to fill."""
    return min(console.width, MAX_WIDTH)


def print_lines(console: Console, content: RenderableType) -> None:
    """Print; in a pipe without the trailing spaces that tables have."""
    if console.is_terminal:
        console.print(content)
        return
    with console.capture() as captured:
        console.print(content)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_path(console: Console, what: str, path: Path) -> None:
    """Print where something is, on one line however long, so that it can be copied."""
    console.print(f"{what} {path}", soft_wrap=True)


def print_json(plain: dict[str, Any]) -> None:
    """Print plain values as JSON, for scripts."""
    sys.stdout.write(to_json(plain))


def to_json(plain: dict[str, Any]) -> str:
    """Plain values as JSON; non-finite numbers become null."""
    return msgspec.json.format(msgspec.json.encode(plain), indent=1).decode() + "\n"
