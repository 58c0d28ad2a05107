"""The metrics of a run as one table in a CSV or Parquet file."""

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trackside.errors import ConfigError
from trackside.optional import require
from trackside.runs import MetricTable

_INDEX = ("mode", "step", "epoch", "t")


def write_metrics(metrics: Mapping[str, MetricTable], path: Path, mode: str | None = None) -> int:
    """Write metrics to a file in the format of its suffix.

    Args:
        metrics: The metrics by mode, as `Run.metrics`.
        path: The file, *.csv or *.parquet.
        mode: Write only this mode; None for all.

    Returns:
        The number of rows.

    Raises:
        ConfigError: There is no such mode, or the suffix is neither .csv nor .parquet.
        MissingExtraError: The file is Parquet, and pyarrow is not installed.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--metrics: expected a *.csv or *.parquet file, got {str(path)!r}")
    if mode is not None and mode not in metrics:
        raise ConfigError(
            f"--mode: the run has no metrics of mode {mode!r}; its modes are {', '.join(metrics) or 'none'}"
        )
    chosen = {name: table for name, table in metrics.items() if mode in (None, name)}
    if path.suffix == ".csv":
        _write_csv(chosen, path)
    else:
        _write_parquet(chosen, path)
    return sum(map(len, chosen.values()))


def _names(metrics: Mapping[str, MetricTable]) -> list[str]:
    """The metrics of all modes, without the epoch, which is a column already."""
    names = dict.fromkeys(name for table in metrics.values() for name in table.names)
    return [name for name in names if name not in _INDEX]


def _write_csv(metrics: Mapping[str, MetricTable], path: Path) -> None:
    names = _names(metrics)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_INDEX, *names])
        for mode, table in metrics.items():
            columns = [table[name].tolist() if name in table else [math.nan] * len(table) for name in names]
            for row in zip(table.step.tolist(), table.epoch.tolist(), table.t.tolist(), *columns, strict=True):
                writer.writerow([mode, *("" if value != value else value for value in row)])


def _write_parquet(metrics: Mapping[str, MetricTable], path: Path) -> None:
    arrow: Any = require("pyarrow", "Exporting to Parquet")
    parquet: Any = require("pyarrow.parquet", "Exporting to Parquet")
    columns: dict[str, Any] = {
        "mode": arrow.array(
            np.repeat(list(metrics), [len(table) for table in metrics.values()]).tolist(), arrow.string()
        )
    }
    for name in ("step", "epoch", "t"):
        columns[name] = np.concatenate([getattr(table, name) for table in metrics.values()] or [np.zeros(0)])
    for name in _names(metrics):
        parts = [table[name] if name in table else np.full(len(table), np.nan) for table in metrics.values()]
        columns[name] = arrow.array(np.concatenate(parts), from_pandas=True)  # a NaN becomes a missing value
    parquet.write_table(arrow.table(columns), path)
