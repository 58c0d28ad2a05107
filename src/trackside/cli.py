"""The `trackside` command."""

import pathlib
import sys
from json import dumps
from typing import Annotated

import tyro
from rich.console import Console

from trackside import __version__
from trackside.errors import TracksideError

app = tyro.extras.SubcommandApp()

MAX_WIDTH = 120


@app.command
def demo(
    overrides: tyro.conf.Positional[tuple[str, ...]] = (),
    run_dir: Annotated[pathlib.Path, tyro.conf.arg(help="Where to write the run.")] = pathlib.Path("runs/demo"),
) -> None:
    """Train a small network on handwritten digits and show how it went.

    Args:
        overrides: Changes to the configs, such as trainer.seed=1 or optimizer.scheduler.lr=0.01.
        run_dir: Where to write the run.
    """
    from trackside import demo as digits  # brings jax, which --help does not need

    digits.run(run_dir, overrides)


@app.command
def trace(
    path: tyro.conf.Positional[pathlib.Path],
    program: str | None = None,
    json: bool = False,
) -> None:
    """Print where the device's time went in a trace, also in one that trackside did not take.

    Args:
        path: A log directory, a session's directory or a *.xplane.pb file.
        program: Only the executions of this program, such as jit_train_step; all of them if left out.
        json: Print the tables as JSON.
    """
    from trackside.trace import analyse_trace, render_report

    report = analyse_trace(path, program=program)
    if json:
        sys.stdout.write(dumps(report.to_dict(), indent=1) + "\n")
    else:
        console = Console()
        console.print(render_report(report, width=min(console.width, MAX_WIDTH)))


@app.command
def version() -> None:
    """Print the version of trackside."""
    sys.stdout.write(f"trackside {__version__}\n")


def main() -> None:
    """Run the command line. Exit code 2 means that something was wrong with what was asked for."""
    try:
        app.cli(prog="trackside", description="Train JAX models with the stopwatch running.")
    except TracksideError as error:
        sys.stderr.write(f"trackside: {error}\n")
        sys.exit(2)
