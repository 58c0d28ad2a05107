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
    """Write a run's metrics as a table, and its captures for Perfetto.

    The table has the columns mode, step, epoch and t (seconds since 1970), and one for each metric; a cell is empty
    where a row has no such metric. Captures open at https://ui.perfetto.dev, which reads them in the browser.

    Examples:
      trackside export runs/demo --metrics demo.csv
      trackside export runs/demo --metrics demo.parquet --mode train
      trackside export runs/demo --captures for-perfetto

    Args:
        run: The run's directory.
        metrics: Write the metrics to this file, *.csv or *.parquet (which needs the extra parquet).
        mode: Only the metrics of this mode: train, val, time, ...; all of them if left out.
        captures: Write the captures into this directory, one *.trace.json.gz for each session and host.
    """
    from trackside.runs import open_run

    if metrics is None and captures is None:
        raise ConfigError("nothing to export: give --metrics FILE.csv, --metrics FILE.parquet or --captures DIR")
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
