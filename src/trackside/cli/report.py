"""`trackside report`."""

import sys
import webbrowser
from pathlib import Path

from trackside.cli.arguments import HERE, FileOrDefault, Flag, OptionalFile, RunPath
from trackside.cli.output import open_console, print_lines, print_path, to_json, usable_width
from trackside.errors import ConfigError

STDOUT = "-"


def report(
    run: RunPath,
    json: FileOrDefault = None,
    html: OptionalFile = None,
    no_html: Flag = False,
    open: Flag = False,
) -> None:
    """Say how a run went, also one that is going on or died.

    Prints the verdicts with their evidence and what to do, where the time went, how long steps took, the scopes that
    took the device's time, recompiles with the argument that changed, memory and goodput; and writes report.html into
    the run's directory, one file that opens without network.

    Examples:
      trackside report runs/demo
      trackside report runs/demo --open              and show the page in a browser
      trackside report runs/demo --json              write runs/demo/summary.json too
      trackside report runs/demo --json - | jq .step_time.p50_s
      trackside report runs/demo --no-html | less

    Args:
        run: The run's directory, or one of its event files.
        json: Write the figures as JSON: to FILE, to the run's summary.json without one, to the output alone with -.
        html: Where to write the page, instead of the run's report.html.
        no_html: Write no page.
        open: Open the page in a browser.
    """
    from trackside.report import render_summary, summarise_run
    from trackside.runs import open_run

    if no_html and (html is not None or open):
        raise ConfigError(f"--no-html and {'--open' if open else '--html'}: give one of the two, not both")
    opened = open_run(run)
    summary = summarise_run(opened)
    console = open_console()
    if json == STDOUT:
        sys.stdout.write(to_json(summary.to_dict()))
    else:
        print_lines(console, render_summary(summary, usable_width(console)))
        console.print()
    if json is not None and json != STDOUT:
        from trackside.report.summary import FILE_NAME

        print_path(console, "figures", summary.write(opened.path / FILE_NAME if json == HERE else Path(json)))
    if not no_html and (json != STDOUT or html is not None or open):
        from trackside.report.html import write_html_report

        page = write_html_report(opened, html)
        if json != STDOUT:
            print_path(console, "page   ", page)
        if open and not webbrowser.open(page.resolve().as_uri()):
            raise ConfigError(f"--open: no browser was found; open {page} yourself")
