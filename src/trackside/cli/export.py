"""`trackside export`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackside.cli.arguments import OptionalDirectory, OptionalFile, OptionalText, RunPath
from trackside.cli.output import open_console, print_path
from trackside.errors import ConfigError

if TYPE_CHECKING:
    from trackside.runs import Run


def export(
    run: RunPath,
    metrics: OptionalFile = None,
    mode: OptionalText = None,
    captures: OptionalDirectory = None,
) -> None:
    """Export the metrics of a run as a table, and its captures for Perfetto.

    The table has the columns mode, step, epoch and t (seconds since 1970), and one column per metric; a cell is empty
    if a row does not have the metric. Open captures at https://ui.perfetto.dev, which reads them in the browser.

    Examples:
      trackside export runs/demo --metrics demo.csv
      trackside export runs/demo --metrics demo.parquet --mode train
      trackside export runs/demo --captures for-perfetto

    Args:
        run: The run's directory.
        metrics: Write the metrics to this file, *.csv or *.parquet (Parquet needs the extra `parquet`).
        mode: Export only the metrics of this mode: train, val, time, ... (default: all).
        captures: Write the captures to this directory, one *.trace.json.gz per session and host.
    """
    from trackside.runs import open_run

    if metrics is None and captures is None:
        raise ConfigError("nothing to export; pass --metrics FILE.csv, --metrics FILE.parquet or --captures DIR")
    opened = open_run(run)
    console = open_console()
    if metrics is not None:
        from trackside.cli.metric_files import write_metrics

        num_rows = write_metrics(opened.metrics, metrics, mode)
        print_path(console, f"{num_rows:,} rows", metrics)
    if captures is not None:
        from trackside.trace.perfetto import export_captures

        for path in export_captures(_captures_inside(opened), captures):
            print_path(console, "capture", path)


def _captures_inside(run: "Run") -> list[dict[str, Any]]:
    """The captures whose files are where they seem to be: a foreign run must not make us read other files."""
    inside = []
    for row in run.captures:
        link = _link_out(Path(row["path"]), run.path)
        if link is None:
            inside.append(row)
        else:
            sys.stderr.write(f"trackside: {link} is a link that leads out of the run; skipped\n")
    return inside


def _link_out(capture: Path, run: Path) -> Path | None:
    """The capture, or a file in it, that is elsewhere in truth; a capture that was written elsewhere may be there."""
    is_in_run = capture.absolute().is_relative_to(run.absolute())
    root = run.resolve() if is_in_run else capture.resolve()
    paths = [capture, *capture.iterdir()] if capture.is_dir() else [capture]
    return next((path for path in paths if not path.resolve().is_relative_to(root)), None)
