"""Frequent rows of metrics take few bytes, and are read back as they would have been without."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackside import packed_rows
from trackside.clock import ManualClock
from trackside.events import EventWriter, read_events
from trackside.metric_columns import MetricColumns, MetricRow
from trackside.packed_rows import NAMES_KIND, PACKED_KIND
from trackside.runs import open_run


@pytest.fixture(autouse=True)
def packs_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows are many."""
    monkeypatch.setattr(packed_rows, "NUM_READABLE_ROWS", 3)


def write(folder: Path, rows: list[tuple[str, dict[str, Any]]]) -> Path:
    path = folder / "events-00000.jsonl"
    writer = EventWriter(path, ManualClock(1000.0))
    for step, (mode, values) in enumerate(rows, start=1):
        writer.write_metrics(values, step, 1, mode)
    writer.close()
    return path


def kinds(path: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in path.read_bytes().splitlines()]


def test_rows_are_packed_when_they_are_many(tmp_path: Path) -> None:
    """The first rows have names and digits, those of an epoch have them always, and names are written once."""
    rows = [("train", {"loss": 0.5}), ("train_epoch", {"loss": 0.5})] * 6
    found = kinds(write(tmp_path, rows))
    assert found == ["format", *["metrics"] * 6, NAMES_KIND, PACKED_KIND, *["metrics", PACKED_KIND] * 2, "metrics"]


ODD_VALUES = [0.1, -0.0, 5e-324, 1e308, math.inf, -math.inf, math.nan, np.float32(0.1), 3]


def test_values_are_read_back_exactly(tmp_path: Path) -> None:
    """Whatever float it was, and an integer as an integer."""
    path = write(tmp_path, [("train", {"x": value, "epoch": 7}) for value in [1.0, 1.0, 1.0, *ODD_VALUES]])
    rows = [row for row in read_events(path) if row["kind"] == "metrics"]
    assert kinds(path).count(PACKED_KIND) == len(ODD_VALUES)
    np.testing.assert_array_equal([row["values"]["x"] for row in rows[3:]], np.array(ODD_VALUES, float))
    assert all(type(row["values"]["epoch"]) is int for row in rows)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert {(row["t"], row["epoch"], row["mode"]) for row in rows} == {(1000.0, 1, "train")}
    column = open_run(tmp_path).metrics["train"]["x"]
    np.testing.assert_array_equal(column[3:], np.array(ODD_VALUES, float))


def test_what_is_no_number_is_written_as_before(tmp_path: Path) -> None:
    """A value that cannot be packed does not cost its row."""
    path = write(tmp_path, [("train", {"x": 1.0})] * 3 + [("train", {"x": None}), ("train", {"x": 2.0})])
    assert kinds(path)[4:] == ["metrics", NAMES_KIND, PACKED_KIND]
    assert math.isnan(open_run(tmp_path).metrics["train"]["x"][3])


def test_columns_of_rows_with_different_metrics(tmp_path: Path) -> None:
    """Modes, and rows of one mode with other metrics, packed or not, end in the right columns."""
    rows: list[tuple[str, dict[str, Any]]] = []
    for index in range(20):
        rows += [("train", {"loss": float(index), "norm": 2.0}), ("time", {"wait": 0.1 * index})]
        rows += [("train", {"late": 3.0, "loss": -1.0})] if index % 3 == 0 else []
        rows += [("train", {f"once_{index}": 1.0})] if index % 7 == 0 else []
    run = open_run(write(tmp_path, rows))
    assert PACKED_KIND in kinds(tmp_path / "events-00000.jsonl")
    for mode in ("train", "time"):
        table = run.metrics[mode]
        expected = [(step, values) for step, (of, values) in enumerate(rows, start=1) if of == mode]
        assert table.step.tolist() == [step for step, _ in expected]
        for name in table.names:
            present = set(table.present(name).tolist())
            assert present == {index for index, (_, values) in enumerate(expected) if name in values}
            assert all(table[name][index] == expected[index][1][name] for index in present)


def test_the_last_of_equal_steps_counts(tmp_path: Path) -> None:
    """Rows of one step with different metrics stay in their order."""
    writer = EventWriter(tmp_path / "events-00000.jsonl")
    for step in range(1, 9):
        for values in ({"a": 1.0}, {"a": 2.0, "b": 2.0}, {"a": 3.0}):
            writer.write_metrics(values, step, 1, "train")
    writer.close()
    table = open_run(tmp_path).metrics["train"]
    assert table["a"].tolist() == [3.0] * 8
    assert table["b"].tolist() == [2.0] * 8


def test_names_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever begins in the middle of a file, or lost the names to damage, finds them further on."""
    monkeypatch.setattr("trackside.events.NAMES_EVERY_BYTES", 1000)
    path = write(tmp_path, [("train", {"loss": float(index)}) for index in range(100)])
    num_names = kinds(path).count(NAMES_KIND)
    assert num_names > 5
    lines = path.read_bytes().splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if NAMES_KIND.encode() in line)
    path.write_bytes(b"".join([*lines[:first], b'{"kind":"metric_names","t":1\n', *lines[first + 1 :]]))
    run = open_run(tmp_path)
    lost = 100 - len(run.metrics["train"])
    assert 0 < lost < 20
    assert run.problems == [
        "events-00000.jsonl: 1 torn or damaged line was skipped",
        f"events-00000.jsonl: {lost} rows that lacked fields were skipped",
    ]
    assert sum(row["kind"] == "metrics" for row in read_events(path)) == 100 - lost


def test_damaged_packed_rows_are_counted(tmp_path: Path) -> None:
    """Neither base64 that is none, nor too few values, nor unknown names cost another row."""
    path = write(tmp_path, [("train", {"a": float(index), "b": 1.0}) for index in range(10)])
    good = next(line for line in path.read_bytes().splitlines() if PACKED_KIND.encode() in line)
    row = json.loads(good)
    bad = [{**row, "data": "?"}, {**row, "data": row["data"][:8]}, {**row, "names": "x"}, {**row, "step": 2**70}]
    with path.open("ab") as file:
        file.write(b"".join(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in bad))
        file.write(good[:-9] + b"\n")
    run = open_run(tmp_path)
    assert len(run.metrics["train"]) == 10
    assert run.problems == [
        "events-00000.jsonl: 1 torn or damaged line was skipped",
        "events-00000.jsonl: 4 rows that lacked fields were skipped",
    ]


def test_step_metrics_are_skipped_on_request(tmp_path: Path) -> None:
    """Who wants the other rows only gets those of epochs and no others of metrics."""
    path = write(tmp_path, [("train", {"loss": 0.5})] * 6 + [("train_epoch", {"loss": 0.5})])
    assert [row["kind"] for row in read_events(path, skips_step_metrics=True)] == ["format", "metrics"]


def test_a_writer_that_continues_writes_the_names_again(tmp_path: Path) -> None:
    """A second opening does not rely on what the first has written."""
    for _ in range(2):
        path = write(tmp_path, [("train", {"loss": 0.5})] * 5)
    assert kinds(path).count(NAMES_KIND) == 2
    assert sum(row["kind"] == "metrics" for row in read_events(path)) == 10


def test_rows_that_all_differ_are_not_packed(tmp_path: Path) -> None:
    """A writer does not keep names without end."""
    path = write(tmp_path, [("train", {f"m{index % 100}": 0.5}) for index in range(500)])
    assert 0 < kinds(path).count(NAMES_KIND) <= 64
    assert len(open_run(tmp_path).metrics["train"].names) == 100


# --- several rows in a line -------------------------------------------------------------------------------------------


def write_at_once(folder: Path, rows: list[MetricRow]) -> Path:
    """Write rows after enough of them that are like the first."""
    path = folder / "events-00000.jsonl"
    writer = EventWriter(path, ManualClock(1000.0))
    for step in (-3, -2, -1):
        writer.write_metrics(rows[0][0], step, 1, "train")
    writer.write_metrics_rows(rows, "train")
    writer.close()
    return path


def read_both_ways(path: Path) -> list[MetricRow]:
    """The rows of training after the first three; both readers have to give the same."""
    rows = [row for row in read_events(path) if row["kind"] == "metrics"][3:]
    table = open_run(path.parent).metrics["train"]
    for row in rows:
        at = np.flatnonzero(table.step == row["step"])[-1]
        for name, value in row["values"].items():
            np.testing.assert_equal(float(table[name][at]), float(value))
    return [(row["values"], row["step"], row["epoch"]) for row in rows]


def num_rows_of_lines(path: Path) -> list[int]:
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [line.get("num_rows", 1) for line in lines if line["kind"] == PACKED_KIND]


def row(step: int, epoch: int = 1, **values: Any) -> MetricRow:
    return {"loss": step / 7, **values}, step, epoch


ROWS = {
    "every step": ([row(step) for step in range(1, 9)], [8]),
    "every third step": ([row(step) for step in range(3, 20, 3)], [6]),
    "one": ([row(5)], [1]),
    "a gap": ([row(step) for step in (1, 2, 3, 7, 8, 9)], [3, 3]),
    "back again": ([row(step) for step in (5, 6, 2, 3)], [2, 2]),
    "the same step twice": ([row(step) for step in (5, 5, 6)], [1, 2]),
    "two epochs": ([row(step, 1 + step // 4) for step in range(1, 9)], [3, 4, 1]),
    "values that are not finite": ([row(1, acc=math.nan), row(2, acc=math.inf), row(3, acc=1.0)], [3]),
    "integers": ([row(step, count=step) for step in range(1, 5)], [4]),
}


@pytest.mark.parametrize(("rows", "expected"), ROWS.values(), ids=ROWS)
def test_rows_that_are_written_together_share_a_line(
    rows: list[MetricRow], expected: list[int], tmp_path: Path
) -> None:
    """Those that are equally far apart and of one epoch do; all are read back as they were."""
    path = write_at_once(tmp_path, rows)
    assert num_rows_of_lines(path) == expected
    assert repr(read_both_ways(path)) == repr(rows)


def test_other_metrics_begin_another_line(tmp_path: Path) -> None:
    """Rows with other names are in lines of their own."""
    rows = [row(step, acc=1.0) if step % 4 == 0 else row(step) for step in range(1, 13)]
    path = write_at_once(tmp_path, rows)
    assert num_rows_of_lines(path) == [3, 3, 3]  # the others are too few to be packed
    assert repr(read_both_ways(path)) == repr(rows)


def test_line_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage to a line costs a bounded number of rows."""
    monkeypatch.setattr(packed_rows, "MAX_BLOCK_ROWS", 5)
    rows = [row(step) for step in range(1, 13)]
    path = write_at_once(tmp_path, rows)
    assert num_rows_of_lines(path) == [5, 5, 2]
    assert repr(read_both_ways(path)) == repr(rows)


def test_value_that_is_no_number_is_written_beside_the_others(tmp_path: Path) -> None:
    """One row that cannot be packed does not spoil those around it."""
    rows = [row(step, acc=1.0) for step in range(1, 6)]
    rows[2][0]["acc"] = "none"  # type: ignore[assignment]
    path = write_at_once(tmp_path, rows)
    found = {row["step"]: row["values"]["acc"] for row in read_events(path) if row["kind"] == "metrics"}
    assert [found[step] for step in range(1, 6)] == [1.0, 1.0, "none", 1.0, 1.0]


BAD_LINES = [
    (b'"num_rows":8', b'"num_rows":7'),
    (b'"num_rows":8', b'"num_rows":9'),
    (b'"num_rows":8', b'"num_rows":0'),
    (b'"num_rows":8', b'"num_rows":-8'),
    (b'"num_rows":8', b'"num_rows":8.5'),
    (b'"num_rows":8', b'"num_rows":"8"'),
    (b'"num_rows":8', b'"num_rows":99999999999999999999'),
    (b'"data":"', b'"data":"AAAA'),
]


@pytest.mark.parametrize(("good", "bad"), BAD_LINES)
def test_line_that_does_not_fit_is_skipped(good: bytes, bad: bytes, tmp_path: Path) -> None:
    """Its rows are left out by both readers, and the rest is read."""
    path = write_at_once(tmp_path, [row(step) for step in range(1, 9)])
    path.write_bytes(path.read_bytes().replace(good, bad))
    log = read_events(path)
    assert [each["step"] for each in log if each["kind"] == "metrics"] == [-3, -2, -1]
    assert log.num_skipped == 1
    run = open_run(tmp_path)
    assert run.metrics["train"].step.tolist() == [-3, -2, -1]
    assert len(run.problems) == 1


def test_columns_are_read_back_as_rows(tmp_path: Path) -> None:
    """Rows that are given by column are those that would have been written one by one."""
    columns = MetricColumns(("loss", "acc"), [0.5, 1.0, 0.25, 2.0, 0.125, 3.0], [2, 4, 6], [1, 1, 1])
    path = tmp_path / "events-00000.jsonl"
    writer = EventWriter(path, ManualClock(1000.0))
    for _ in range(2):
        writer.write_metrics_columns(columns, "train")
    writer.close()
    assert kinds(path) == ["format", "metrics", "metrics", "metrics", NAMES_KIND, PACKED_KIND]
    found = [(row["values"], row["step"], row["epoch"]) for row in read_events(path) if row["kind"] == "metrics"]
    assert found == columns.rows() * 2


@pytest.mark.parametrize(
    ("steps", "epochs", "every"),
    [
        ([1, 2, 3], [1, 1, 1], 1),
        ([2, 4, 6], [1, 1, 1], 2),
        ([1, 2, 5], [1, 1, 1], 0),
        ([1, 4, 5], [1, 1, 1], 0),
        ([3, 2, 1], [1, 1, 1], 0),
        ([1, 1, 1], [1, 1, 1], 0),
        ([1, 2, 3], [1, 1, 2], 0),
        ([7], [1], 1),
    ],
)
def test_how_far_apart_columns_are(steps: list[int], epochs: list[int], every: int) -> None:
    """Equally far in one epoch, or not at all."""
    assert MetricColumns(("loss",), [0.0] * len(steps), steps, epochs).every == every


def test_columns_with_more_metrics() -> None:
    """Each row gets its values of the metrics that are added."""
    columns = MetricColumns(("a", "b"), [1.0, 2.0, 3.0, 4.0], [5, 6], [1, 1])
    more = columns.extended(("c", "d"), [7.0, 8.0], [9, 10])
    assert more.rows() == [
        ({"a": 1.0, "b": 2.0, "c": 7.0, "d": 9}, 5, 1),
        ({"a": 3.0, "b": 4.0, "c": 8.0, "d": 10}, 6, 1),
    ]
