"""Metrics in plain files: one table per mode, each row on disk when it is logged."""

import csv
import errno
import io
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import quote

import msgspec

from trackside.errors import ConfigError
from trackside.files import write_atomically
from trackside.logger.tool import LoggerTool, LoggerToolsConfig, check_folder, tool_directory
from trackside.metric_columns import MetricColumns, MetricRow

if TYPE_CHECKING:
    from trackside.logger.logger import Logger


@dataclass(kw_only=True)
class FileLoggerConfig(LoggerToolsConfig):
    """Metrics as tables: `train.csv`, `val.csv` and so on."""

    log_dir: str = "metrics"
    """The tables' directory inside `log_path`."""
    file_format: Literal["csv", "jsonl"] = "csv"
    """`csv`, whose header grows with new metrics, or `jsonl`, one JSON object per line."""

    def __post_init__(self):
        if self.file_format not in ("csv", "jsonl"):
            raise ConfigError(f"FileLoggerConfig.file_format is {self.file_format!r}. Use 'csv' or 'jsonl'.")

    def check_usable(self, has_folder: bool) -> None:
        """The tables need a folder."""
        check_folder(has_folder, "FileLoggerConfig")

    def create(self, logger: "Logger") -> "FileLogger":
        """Make the tool; needs a `log_path`."""
        return FileLogger(tool_directory(logger, self.log_dir, "FileLoggerConfig"), self.file_format)


class FileLogger(LoggerTool):
    """Appends each row to the table of its mode; a table that is there already is continued.

    Args:
        directory: Where the tables are.
        file_format: `csv` or `jsonl`.
    """

    threaded: ClassVar[bool] = False

    def __init__(self, directory: Path, file_format: Literal["csv", "jsonl"] = "csv"):
        self.directory = directory
        self.file_format = file_format
        self._tables: dict[str, _CsvTable | _JsonlTable] = {}

    def setup(self) -> None:
        """Make the directory."""
        self.directory.mkdir(parents=True, exist_ok=True)

    def rewind(self, step: int) -> None:
        """Take rows of later steps out of the tables."""
        for path in self.directory.glob(f"*.{self.file_format}"):
            table = _CsvTable(path) if self.file_format == "csv" else _JsonlTable(path)
            table.cut(step)
            table.close()

    def log_metrics(self, metrics: dict[str, float], step: int, epoch: int, mode: str) -> None:
        """Append a row with the columns `step` and `epoch`, and one per metric."""
        self.log_metrics_rows([(metrics, step, epoch)], mode)

    def log_metrics_rows(self, rows: Sequence[MetricRow], mode: str) -> None:
        """Append several rows, by one write."""
        self._table(mode).append([{**metrics, "step": step, "epoch": epoch} for metrics, step, epoch in rows])

    def log_metrics_columns(self, columns: MetricColumns, mode: str) -> None:
        """Append several rows with the same metrics, by one write."""
        self._table(mode).append_columns(columns)

    def finalize(self, status: str) -> None:
        """Close the files."""
        while self._tables:
            self._tables.popitem()[1].close()

    def _table(self, mode: str) -> "_CsvTable | _JsonlTable":
        table = self._tables.get(mode)
        if table is None:
            table = self._tables[mode] = self._open(mode)
        return table

    def _open(self, mode: str) -> "_CsvTable | _JsonlTable":
        # Quoted as in a URL, so that no two modes share a file and none leaves the directory.
        path = self.directory / f"{quote(mode, safe='')}.{self.file_format}"
        return _CsvTable(path) if self.file_format == "csv" else _JsonlTable(path)


class _AppendFile:
    """A file of lines, each written whole; a line torn by a kill is cut off when the file is opened."""

    def __init__(self, path: Path):
        self.path = path
        self._fd = self._open()

    def write(self, lines: bytes) -> None:
        num_written = os.write(self._fd, lines)
        if num_written != len(lines):
            num_torn = num_written - (lines.rfind(b"\n", 0, num_written) + 1)
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - num_torn)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def replace(self, content: bytes) -> None:
        """Exchange the whole content; a kill leaves the old or the new one."""
        write_atomically(self.path, content)
        self.close()
        self._fd = self._open()

    def close(self) -> None:
        os.close(self._fd)

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            os.ftruncate(fd, self.path.read_bytes().rfind(b"\n") + 1)
        return fd


class _JsonlTable:
    """One JSON object per row. What is not finite is spelled as text, since JSON has no word for it."""

    def __init__(self, path: Path):
        self._file = _AppendFile(path)
        self.close = self._file.close

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        self._file.write(b"".join(msgspec.json.encode(_spelled(row)) + b"\n" for row in rows))

    def append_columns(self, columns: MetricColumns) -> None:
        self.append([{**metrics, "step": step, "epoch": epoch} for metrics, step, epoch in columns.rows()])

    def cut(self, step: int) -> None:
        """Take rows of later steps out."""
        lines = self._file.path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if msgspec.json.decode(line)["step"] <= step]
        if len(kept) < len(lines):
            self._file.replace(b"".join(kept))


def _spelled(row: dict[str, Any]) -> dict[str, Any]:
    ordered = {"step": row["step"], "epoch": row["epoch"], **row}
    return {name: value if math.isfinite(value) else str(value) for name, value in ordered.items()}


class _CsvTable:
    """A table whose header names every metric so far; a row without one of them leaves it empty."""

    def __init__(self, path: Path):
        self._file = _AppendFile(path)
        self.close = self._file.close
        with path.open(newline="", encoding="utf-8") as file:
            self._columns: list[str] = next(csv.reader(file), [])
        self._known = set(self._columns)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        names = rows[0].keys() if len(rows) == 1 else dict.fromkeys(chain.from_iterable(rows))
        if not self._known.issuperset(names):
            self._widen(names)
        self._file.write(_csv_bytes([[row.get(column, "") for column in self._columns] for row in rows]))

    def append_columns(self, columns: MetricColumns) -> None:
        values = {**columns.by_name(), "step": columns.steps, "epoch": columns.epochs}
        if not self._known.issuperset(values):
            self._widen(values)
        missing = [""] * len(columns.steps)
        rows = list(zip(*(values.get(column, missing) for column in self._columns), strict=True))
        self._file.write(_number_lines(rows) if len(values) == len(self._columns) else _csv_bytes(rows))

    def _widen(self, names: Iterable[str]) -> None:
        columns = self._columns or ["step", "epoch"]
        columns = [*columns, *(name for name in names if name not in columns)]
        old_rows = self._read()[1:]
        padded = [old + [""] * (len(columns) - len(old)) for old in old_rows]
        self._file.replace(_csv_bytes([columns, *padded]))
        self._columns, self._known = columns, set(columns)

    def cut(self, step: int) -> None:
        """Take rows of later steps out."""
        header, *rows = self._read() or [[]]
        kept = [row for row in rows if int(row[header.index("step")]) <= step]
        if len(kept) < len(rows):
            self._file.replace(_csv_bytes([header, *kept]))

    def _read(self) -> list[list[str]]:
        with self._file.path.open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file))


def _number_lines(rows: Sequence[Sequence[float]]) -> bytes:
    """Rows of nothing but numbers: as arrays of JSON, which takes a twelfth of the time of `csv`."""
    if not rows:
        return b""
    try:
        lines = msgspec.json.encode(rows)
    except TypeError:  # a number of numpy's
        return _csv_bytes(rows)
    # JSON has no word for what is not finite.
    return _csv_bytes(rows) if b"null" in lines else lines[2:-2].replace(b"],[", b"\n") + b"\n"


def _csv_bytes(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8")
