"""`trackside watch`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.live import Live
from rich.text import Text

from trackside.cli.arguments import Flag, RunPath, Silenced
from trackside.cli.output import OutputConsole, open_console, print_lines, usable_width
from trackside.clock import SYSTEM_CLOCK
from trackside.errors import ConfigError

GRACE_S = 60.0
"""Seconds after its last row in which a run without a lock may still be on its way to its first step."""


def watch(
    run: RunPath,
    interval: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 2.0,
    once: Flag = False,
    silence: Silenced = (),
) -> None:
    """Follow a run while it trains: progress, speed, where the time goes, losses, findings.

    Only reads files, so it works over ssh or from another machine, and does not disturb the training. Waits for a run
    that does not exist yet, and ends with the run or with Ctrl-C. In a pipe, prints a line when something changes.

    Examples:
      trackside watch runs/demo
      ssh cluster trackside watch runs/demo --once      show the current state and exit
      trackside watch runs/demo | tee progress.txt

    Args:
        run: The run's directory.
        interval: How often to update.
        once: Print the current state and exit.
        silence: Leave out the findings of this id.
    """
    from trackside.findings.silencing import checked_ids

    if interval <= 0:
        raise ConfigError(f"--interval: expected a positive number of seconds, got {interval:g}")
    follower = Follower(run, checked_ids(silence, "--silence"))
    console = open_console()
    try:
        if once:
            _print_once(follower, console)
        elif console.is_terminal and not console.is_dumb_terminal:
            _follow_in_place(follower, interval, console)
        else:
            _follow_in_lines(follower, interval, console)
    except KeyboardInterrupt:  # how people stop watching
        return


class Follower:
    """Opens a run as soon as it exists, reads what is appended, and knows when the run is over.

    Args:
        path: The run's directory.
        silenced: The ids of findings to leave out.
    """

    def __init__(self, path: Path, silenced: Sequence[str] = ()):
        from trackside.runs import Run

        self.path = path
        self._silenced = silenced
        self.run: Run | None = None
        self._num_dead = 0
        self._was_running = False

    def look(self) -> bool:
        """Read what is new; returns whether there was anything."""
        from trackside.runs import RunError, open_run

        if self.run is None:
            try:
                self.run = open_run(self.path, self._silenced)
            except RunError:
                return False
            has_news = True
        else:
            has_news = self.run.refresh()
        self._was_running = self._was_running or self.run.status == "running"
        self._num_dead = self._num_dead + 1 if self.run.status in ("dead", "not started") else 0
        return has_news

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be written.

        A run may look dead, or as if it had never started, for a moment: before it takes its lock, and when its last
        row was written just after the file was read. So it has to look so twice, and have been running or silent for a
        while.
        """
        if self.run is None:
            return False
        is_silent = self._was_running or SYSTEM_CLOCK.timestamp() - self.run.ended_at > GRACE_S
        return self.run.is_finished or (self._num_dead > 1 and is_silent)


def _picture(follower: Follower, console: OutputConsole) -> Text:
    from trackside.cli.watch_picture import render_picture

    if follower.run is None:
        return Text(f"waiting for a run at {follower.path}")
    plain = not console.is_terminal or console.color_system is None
    return render_picture(follower.run, SYSTEM_CLOCK.timestamp(), usable_width(console), plain)


def _print_once(follower: Follower, console: OutputConsole) -> None:
    follower.look()
    print_lines(console, _picture(follower, console))


def _follow_in_place(follower: Follower, interval_s: float, console: OutputConsole) -> None:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            follower.look()
            live.update(_picture(follower, console), refresh=True)
            if follower.is_over:
                break
            time.sleep(interval_s)
    console.print(f"for the full report, run `trackside report {follower.path}`", soft_wrap=True)


def _follow_in_lines(follower: Follower, interval_s: float, console: OutputConsole) -> None:
    from trackside.cli.watch_picture import render_finding_line, render_line

    printed: set[tuple[str, str]] = set()
    last = ""
    while True:
        follower.look()
        if follower.run is None:
            line = _picture(follower, console).plain
        else:
            line = render_line(follower.run)
            for finding in follower.run.findings:
                if finding.key not in printed:
                    printed.add(finding.key)
                    console.print(render_finding_line(finding), soft_wrap=True)
        if line != last:
            console.print(line, soft_wrap=True)
            console.file.flush()
        last = line
        if follower.is_over:
            return
        time.sleep(interval_s)
