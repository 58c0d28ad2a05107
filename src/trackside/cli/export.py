"""`trackside export`."""

from trackside.cli.arguments import OptionalDirectory, OptionalFile, OptionalText, RunPath
from trackside.cli.output import open_console, print_path
from trackside.errors import ConfigError


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

        for path in export_captures(opened.captures, captures):
            print_path(console, "capture", path)
