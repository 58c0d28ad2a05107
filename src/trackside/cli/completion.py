"""`trackside completion`."""

import contextlib
import io
import sys
from typing import Annotated, Literal

import tyro

from trackside.cli import load_command
from trackside.cli.commands import COMMANDS


def completion(shell: Annotated[tyro.conf.Positional[Literal["bash", "zsh"]], tyro.conf.arg(metavar="SHELL")]) -> None:
    """Print a script for tab completion of commands and options.

    Examples:
      source <(trackside completion bash)      in this shell
      trackside completion bash > ~/.local/share/bash-completion/completions/trackside
      trackside completion zsh > "${fpath[1]}/_trackside"

    Args:
        shell: bash or zsh.
    """
    app = tyro.extras.SubcommandApp()
    for name, command in COMMANDS.items():
        app.command(name=name, help=command.summary)(load_command(name))
    with io.StringIO() as script, contextlib.redirect_stdout(script):
        with contextlib.suppress(SystemExit):  # tyro exits after printing
            app.cli(prog="trackside", args=["--tyro-print-completion", shell], config=(tyro.conf.FlagCreatePairsOff,))
        text = script.getvalue()
    sys.stdout.write(_complete_paths(text))


def _complete_paths(script: str) -> str:
    """Complete paths where there is nothing else to complete: tyro does so after options, but not for a RUN.

    It completes from the current word with the words before it, since it joins what bash splits at colons.
    """
    asked = '"$completions" == "__TYRO_COMPLETE_FILES__"'
    changes = {
        asked: f'{asked} || -z "$completions"',
        'compgen -f -- "$cur"': 'compgen -f -- "${COMP_WORDS[COMP_CWORD]}"',
        "complete -F ": "complete -o filenames -F ",
    }
    for old, new in changes.items():
        script = script.replace(old, new)
    return script
