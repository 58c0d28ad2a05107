"""What commands write to: a terminal, or a pipe that may be closed before they are done."""

import sys
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from rich.console import Console, RenderableType

MAX_WIDTH = 120
"""Wider than this, lines are hard to read."""


class OutputConsole(Console):
    """A console that leaves it to the command line what a closed pipe means.

    Rich would end the process with exit code 1, which says that there is a regression.
    """

    def on_broken_pipe(self) -> NoReturn:
        """Say so to the caller."""
        raise BrokenPipeError


def open_console() -> OutputConsole:
    """The console for what a command shows: in colours on a terminal, plain text in a pipe."""
    # Names of runs, scopes and operations are shown as they are, also with brackets and colons.
    return OutputConsole(markup=False, emoji=False, highlight=False)


def usable_width(console: Console) -> int:
    """The columns that a command fills."""
    return min(console.width, MAX_WIDTH)


def print_lines(console: Console, content: RenderableType) -> None:
    """Print without the spaces that fill up the lines of tables, which only a terminal has a use for."""
    if console.is_terminal:
        console.print(content)
        return
    with console.capture() as captured:
        console.print(content)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_path(console: Console, what: str, path: Path) -> None:
    """Say where something is, in one line however long: it is there to be copied."""
    console.print(f"{what} {path}", soft_wrap=True)


def print_json(plain: dict[str, Any]) -> None:
    """Print plain values as JSON, for scripts."""
    sys.stdout.write(to_json(plain))


def to_json(plain: dict[str, Any]) -> str:
    """Plain values as JSON; what is not finite becomes null, since JSON has no word for it."""
    return msgspec.json.format(msgspec.json.encode(plain), indent=1).decode() + "\n"
