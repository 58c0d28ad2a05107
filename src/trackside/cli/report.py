"""`trackside report`."""

import sys
import webbrowser
from pathlib import Path

from trackside.cli.arguments import HERE, FileOrDefault, Flag, OptionalFile, RunPath, Silenced
from trackside.cli.output import open_console, print_lines, print_path, to_json, usable_width
from trackside.errors import ConfigError
from trackside.run_layout import SUMMARY_FILE_NAME

STDOUT = "-"


def report(
    run: RunPath,
    json: FileOrDefault = None,
    html: OptionalFile = None,
    no_html: Flag = False,
    open: Flag = False,
    silence: Silenced = (),
) -> None:
    """Show how a run went, whether it has finished, is still training, or died.

    Prints findings with their evidence and advice, where the time went, step times, device time by scope, recompiles
    with the argument that changed, memory and goodput. Also writes report.html, a self-contained page, into the run's
    directory.

    Examples:
      trackside report runs/demo
      trackside report runs/demo --open              also open the page in a browser
      trackside report runs/demo --json              also write runs/demo/summary.json
      trackside report runs/demo --json - | jq .step_time.p50_s
      trackside report runs/demo --no-html | less
      trackside report runs/demo --silence input-bound      leave a finding out

    Args:
        run: The run's directory, or one of its event files.
        json: Write the figures as JSON to FILE (default: summary.json in the run; - prints only the JSON).
        html: Write the page to this file instead of report.html in the run.
        no_html: Do not write the page.
        open: Open the page in a browser.
        silence: Leave out the findings of this id.
    """
    from trackside.findings.silencing import checked_ids
    from trackside.report import render_summary, summarise_run
    from trackside.runs import open_run

    if no_html and (html is not None or open):
        raise ConfigError(f"--no-html and {'--open' if open else '--html'} contradict each other; drop one of them")
    opened = open_run(run, checked_ids(silence, "--silence"))
    summary = summarise_run(opened)
    console = open_console()
    if json == STDOUT:
        sys.stdout.write(to_json(summary.to_dict()))
    else:
        print_lines(console, render_summary(summary, usable_width(console)))
        console.print()
    if json is not None and json != STDOUT:
        target = opened.path / SUMMARY_FILE_NAME if json == HERE else Path(json)
        print_path(console, "figures", summary.write(target))
    if not no_html and (json != STDOUT or html is not None or open):
        from trackside.report.html import write_html_report

        page = write_html_report(opened, html)
        if json != STDOUT:
            print_path(console, "page   ", page)
        if open and not webbrowser.open(page.resolve().as_uri()):
            raise ConfigError(f"--open: no browser found; open {page} yourself")
