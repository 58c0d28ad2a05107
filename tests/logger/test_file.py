import csv
import errno
import json
import math
import os
import sys

import numpy as np
import pytest

from tests.fork_server import run
from trackside.errors import ConfigError
from trackside.logger import FileLogger, FileLoggerConfig
from trackside.logger import file as file_module
from trackside.metric_columns import MetricColumns


@pytest.fixture
def make_tool(tmp_path):
    tools = []

    def make(file_format="csv"):
        tool = FileLogger(tmp_path / "metrics", file_format)
        tool.setup()
        tools.append(tool)
        return tool

    yield make
    for tool in tools:
        tool.finalize("success")


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_one_table_per_mode(make_tool, tmp_path):
    """Each row is in the file of its mode when the call returns."""
    tool = make_tool()
    tool.log_metrics({"loss": 0.5, "epoch": 1, "step_time": 0.25}, step=10, epoch=1, mode="train")
    tool.log_metrics({"loss": 0.75}, step=10, epoch=1, mode="val")
    assert (tmp_path / "metrics" / "train.csv").read_text() == "step,epoch,loss,step_time\n10,1,0.5,0.25\n"
    assert (tmp_path / "metrics" / "val.csv").read_text() == "step,epoch,loss\n10,1,0.75\n"


def test_the_header_grows(make_tool, tmp_path):
    """A new metric widens the table; rows without it leave it empty."""
    tool = make_tool()
    tool.log_metrics({"loss": 1.0}, step=1, epoch=1, mode="train")
    tool.log_metrics({"acc": 0.5, "loss": 2.0}, step=2, epoch=1, mode="train")
    tool.log_metrics({"loss": 3.0}, step=3, epoch=1, mode="train")
    rows = read(tmp_path / "metrics" / "train.csv")
    assert [row["loss"] for row in rows] == ["1.0", "2.0", "3.0"]
    assert [row["acc"] for row in rows] == ["", "0.5", ""]
    assert [path.name for path in (tmp_path / "metrics").iterdir()] == ["train.csv"]


@pytest.mark.parametrize("file_format", ["csv", "jsonl"])
def test_a_table_that_is_there_is_continued(make_tool, tmp_path, file_format):
    """A line torn by a kill is cut off, whole ones stay."""
    path = tmp_path / "metrics" / f"train.{file_format}"
    first = make_tool(file_format)
    first.log_metrics({"loss": 1.0}, step=1, epoch=1, mode="train")
    whole = path.read_bytes()
    first.log_metrics({"loss": 2.0}, step=2, epoch=1, mode="train")
    first.finalize("error")
    path.write_bytes(path.read_bytes()[:-2])
    make_tool(file_format).log_metrics({"loss": 3.0}, step=2, epoch=1, mode="train")
    content = path.read_bytes()
    assert content.startswith(whole)
    assert content.count(b"\n") == whole.count(b"\n") + 1
    assert b"3.0" in content


def test_a_header_that_is_torn_starts_the_table_over(make_tool, tmp_path):
    """A file without a single whole line is as good as none."""
    tool = make_tool()
    (tmp_path / "metrics" / "train.csv").write_text("step,ep")
    tool.log_metrics({"loss": 1.0}, step=1, epoch=1, mode="train")
    assert read(tmp_path / "metrics" / "train.csv") == [{"step": "1", "epoch": "1", "loss": "1.0"}]


@pytest.mark.parametrize("mode", ["val/en", "../up", "a b", "größe", "."])
def test_odd_modes_stay_in_the_directory(make_tool, tmp_path, mode):
    """Two modes never share a file, and none leaves the directory."""
    tool = make_tool()
    tool.log_metrics({"loss": 1.0}, step=1, epoch=1, mode=mode)
    tool.log_metrics({"loss": 2.0}, step=1, epoch=1, mode="val_en")
    assert len(list((tmp_path / "metrics").iterdir())) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["metrics"]


def test_odd_metric_names_survive(make_tool, tmp_path):
    """Commas, quotes and line ends in a name are quoted."""
    names = ["a,b", 'say "x"', "two\nlines", "größe"]
    tool = make_tool()
    tool.log_metrics(dict.fromkeys(names, 1.0), step=1, epoch=1, mode="train")
    tool.log_metrics({"late": 2.0}, step=2, epoch=1, mode="train")
    rows = read(tmp_path / "metrics" / "train.csv")
    assert [rows[0][name] for name in names] == ["1.0"] * 4
    assert rows[1]["late"] == "2.0"


def test_numbers_survive_to_the_last_digit(make_tool, tmp_path):
    """What is read is what was logged, also where it is not finite."""
    values = {"a": 0.1 + 0.2, "b": math.nan, "c": -math.inf, "d": 1e-300}
    make_tool().log_metrics(values, step=1, epoch=1, mode="train")
    (row,) = read(tmp_path / "metrics" / "train.csv")
    assert float(row["a"]) == values["a"]
    assert math.isnan(float(row["b"]))
    assert float(row["c"]) == -math.inf
    assert float(row["d"]) == 1e-300


def test_json_lines(make_tool, tmp_path):
    """Each line is an object in valid JSON, step and epoch first."""
    make_tool("jsonl").log_metrics({"loss": 0.5, "bad": math.nan}, step=3, epoch=2, mode="train")
    line = (tmp_path / "metrics" / "train.jsonl").read_text()
    assert json.loads(line) == {"step": 3, "epoch": 2, "loss": 0.5, "bad": "nan"}
    assert list(json.loads(line))[:2] == ["step", "epoch"]


def test_the_logger_writes_tables(make_logger, tmp_path):
    """Through a logger, the tables are below its path and complete before it is closed."""
    logger = make_logger(tmp_path, tools=[FileLoggerConfig(log_dir="tables")])
    logger.start_epoch(1, step=0)
    logger.log_row({"loss": 0.5}, step=1)
    (row,) = read(tmp_path / "tables" / "train.csv")
    assert (row["step"], row["epoch"], row["loss"]) == ("1", "1", "0.5")


def test_unknown_formats_are_refused():
    """The error names those that exist."""
    with pytest.raises(ConfigError, match=r"file_format is 'xml'.*'csv' or 'jsonl'"):
        FileLoggerConfig(file_format="xml")  # pyright: ignore


@pytest.mark.parametrize("file_format", ["csv", "jsonl"])
def test_several_rows_at_once_are_the_same_rows(make_tool, tmp_path, file_format):
    """Whether rows come together or one by one, with new metrics among them or without, the tables are the same."""
    rows = [({"loss": 0.5}, 1, 1), ({"loss": 0.25, "acc": 1.0}, 2, 1), ({"acc": math.nan}, 3, 2)]
    tool = make_tool(file_format)
    tool.log_metrics_rows(rows, "train")
    tool.log_metrics_rows(rows, "train")
    for row in (*rows, *rows):
        tool.log_metrics(*row, "val")
    together, one_by_one = ((tmp_path / "metrics" / f"{mode}.{file_format}").read_text() for mode in ("train", "val"))
    assert together == one_by_one


COLUMNS = {
    "numbers": ([0.1 + 0.2, 1e-300, 3.0, 1e22, 7, -0.0], ("loss", "acc")),
    "not finite": ([math.nan, math.inf, -math.inf, 0.5, 1.0, 2.0], ("loss", "acc")),
    "of numpy": ([np.float64(0.5), np.float32(0.1), 1, 2, 3, 4], ("loss", "acc")),
    "with an epoch": ([0.5, 1, 0.25, 1, 0.125, 2], ("loss", "epoch")),
    "odd names": ([0.5, 1.0, 2.0, 3.0, 4.0, 5.0], ("null", 'a,"b')),
}


@pytest.mark.parametrize(
    ("file_format", "kind"), [*(("csv", kind) for kind in COLUMNS), ("jsonl", "numbers"), ("jsonl", "not finite")]
)
def test_columns_are_the_same_rows(make_tool, tmp_path, file_format, kind):
    """Rows that come by column have the numbers of those that come one by one, to the last digit, in their places."""
    flat, names = COLUMNS[kind]
    columns = MetricColumns(names, flat, [4, 5, 6], [1, 1, 2])
    tool = make_tool(file_format)
    for row in columns.rows():
        tool.log_metrics(*row, "rows")
    tool.log_metrics({"early": 1.0}, 1, 1, "late")
    for mode in ("columns", "late"):
        tool.log_metrics_columns(columns, mode)
        tool.log_metrics_columns(columns, mode)
    rows, by_column, late = (numbers_in(tmp_path / "metrics" / f"{name}.{file_format}") for name in TABLES)
    assert by_column == [*rows, *rows]
    assert [{name: row[name] for name in rows[0]} for row in late[1:]] == [*rows, *rows]


TABLES = ("rows", "columns", "late")


def numbers_in(path):
    """The rows of a table; the text of what is not finite."""
    rows = read(path) if path.suffix == ".csv" else [json.loads(line) for line in path.read_text().splitlines()]
    return [
        {name: value if not value or not math.isfinite(float(value)) else float(value) for name, value in row.items()}
        for row in rows
    ]


def test_a_long_table_is_opened_by_its_header(make_tool, tmp_path, monkeypatch):
    """To continue a table, only its beginning is read: a training that is called again does not pay for its past."""
    make_tool().log_metrics_columns(
        MetricColumns(("loss",), [0.5] * 50_000, list(range(50_000)), [1] * 50_000), "train"
    )
    num_read, read_rows = 0, csv.reader

    def counting(file):
        nonlocal num_read
        for num_read, row in enumerate(read_rows(file), start=1):  # noqa: B007
            yield row

    monkeypatch.setattr(file_module.csv, "reader", counting)
    make_tool().log_metrics({"loss": 1.0}, 50_001, 1, "train")
    assert num_read == 1


@pytest.mark.parametrize("file_format", ["csv", "jsonl"])
def test_a_full_disk_keeps_the_rows_that_fit(tmp_path, file_format):
    """Of rows that are written together, those before the disk was full are whole, and the next ones follow them."""
    code = """
import resource, sys
from pathlib import Path
from trackside.logger.file import FileLogger
tool = FileLogger(Path(sys.argv[1]), sys.argv[2])
tool.setup()
rows = [({"loss": 0.5}, step, 1) for step in range(100)]
tool.log_metrics_rows(rows[:1], "train")
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (400, hard))
try:
    tool.log_metrics_rows(rows[1:], "train")
except OSError as error:
    print(error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
tool.log_metrics_rows(rows[-1:], "train")
"""
    result = run([sys.executable, "-c", code, tmp_path, file_format], capture_output=True, text=True, check=True)
    assert os.strerror(errno.ENOSPC) in result.stdout
    path = tmp_path / f"train.{file_format}"
    rows = read(path) if file_format == "csv" else list(map(json.loads, path.read_text().splitlines()))
    steps = [int(row["step"]) for row in rows]
    assert 5 < len(steps) < 50
    assert steps == [*range(len(steps) - 1), 99]
    assert path.stat().st_size <= 400 + len(path.read_text().splitlines()[-1]) + 1
