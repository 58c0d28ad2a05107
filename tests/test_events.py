import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from trackside.clock import ManualClock
from trackside.errors import EventFileError
from trackside.events import FORMAT_VERSION, EventWriter, NullEventWriter, read_events
from trackside.run_layout import event_file_name


@pytest.fixture
def path(tmp_path):
    return tmp_path / event_file_name(0)


def rows_of(path, kind):
    return [row for row in read_events(path) if row["kind"] == kind]


def run_python(code, *args):
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, check=True)


def test_one_file_per_process():
    """The process index is part of the file's name."""
    assert event_file_name(12) == "events-00012.jsonl"


def test_a_row_carries_kind_time_and_fields(path):
    """What was written comes back, in the envelope."""
    clock = ManualClock(100.0)
    writer = EventWriter(path, clock)
    clock.advance(5)
    writer.write("compile", seconds=1.5, function="train_step", shapes=[[8, 4]])
    writer.close()
    assert list(read_events(path)) == [
        {"kind": "format", "t": 100.0, "version": FORMAT_VERSION},
        {"kind": "compile", "t": 105.0, "seconds": 1.5, "function": "train_step", "shapes": [[8, 4]]},
    ]


def test_a_row_can_be_read_before_the_file_is_closed(path):
    """A row is in the file when the call returns, and reading a file being written works."""
    writer = EventWriter(path)
    for step in range(3):
        writer.write_metrics({"loss": 0.5}, step=step, epoch=1, mode="train")
        assert [row["step"] for row in rows_of(path, "metrics")] == list(range(step + 1))
    writer.close()


def test_metrics_row(path):
    """A metrics row tells step, epoch, mode and values."""
    writer = EventWriter(path, ManualClock(1.0))
    writer.write_metrics({"loss": 0.25, "acc": 1.0}, step=7, epoch=2, mode="val")
    writer.close()
    (row,) = rows_of(path, "metrics")
    assert row == {
        "kind": "metrics",
        "t": 1.0,
        "step": 7,
        "epoch": 2,
        "mode": "val",
        "values": {"loss": 0.25, "acc": 1.0},
    }


@pytest.mark.parametrize("general", [False, True])
def test_values_that_are_not_finite_survive(path, general):
    """NaN and both infinities come back as floats, by either way of writing, and the file stays JSON."""
    values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}
    writer = EventWriter(path)
    if general:
        writer.write("metrics", step=1, epoch=1, mode="train", values=values)
    else:
        writer.write_metrics(values, step=1, epoch=1, mode="train")
    writer.close()
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    (row,) = rows_of(path, "metrics")
    assert math.isnan(row["values"].pop("a"))
    assert row["values"] == {"b": math.inf, "c": -math.inf, "d": 1.0}
    assert math.isnan(values["a"]), "the caller's dict was changed"


def test_numpy_values_are_converted(path):
    """Scalars and arrays of numpy are written as numbers and lists."""
    writer = EventWriter(path)
    writer.write("memory", peak=np.int64(3), shares=np.array([0.5, 0.25], np.float32))
    writer.write_metrics({"loss": np.float32(0.5), "bad": np.float32("nan")}, step=1, epoch=1, mode="train")
    writer.close()
    (memory,) = rows_of(path, "memory")
    assert (memory["peak"], memory["shares"]) == (3, [0.5, 0.25])
    (metrics,) = rows_of(path, "metrics")
    assert metrics["values"]["loss"] == 0.5
    assert math.isnan(metrics["values"]["bad"])


def test_odd_fields_are_written_as_text(path):
    """Paths, objects, keys that are not strings and text that is not Unicode do not prevent a row."""
    writer = EventWriter(path)
    writer.write("odd", where=Path("a/b"), table={(1, 2): "x"}, name="caf\udce9")
    writer.close()
    (row,) = rows_of(path, "odd")
    assert row["where"] == "a/b"
    assert row["table"] == {"(1, 2)": "x"}
    assert row["name"].startswith("caf")


def test_every_row_before_a_kill_is_there(path):
    """After SIGKILL the file holds each row whose call had returned."""
    code = """
import os, sys
from trackside.events import EventWriter
writer = EventWriter(sys.argv[1])
for step in range(1_000_000):
    writer.write_metrics({"loss": 1.0 / (step + 1)}, step=step, epoch=1, mode="train")
    os.write(1, b"%d\\n" % step)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as acknowledged:
        last = 0
        while last < 500:
            last = int(acknowledged.readline())
        process.send_signal(signal.SIGKILL)
        last = max([last, *(int(line) for line in acknowledged.read().split(b"\n") if line)])
    assert process.wait() == -signal.SIGKILL
    steps = [row["step"] for row in rows_of(path, "metrics")]
    assert steps == list(range(len(steps)))
    assert len(steps) >= last + 1


def test_a_torn_last_line_is_skipped_and_counted(path):
    """An incomplete line is skipped and counted."""
    EventWriter(path).close()
    with path.open("ab") as file:
        file.write(b'{"kind":"metrics","st')
    log = read_events(path)
    assert [row["kind"] for row in log] == ["format"]
    assert log.num_skipped == 1


def test_a_writer_does_not_continue_a_torn_line(path):
    """A file left torn by a kill is ended before anything is appended."""
    path.write_bytes(b'{"kind":"format","version":1}\n{"kind":"metrics","st')
    writer = EventWriter(path)
    writer.write("status", status="success")
    writer.close()
    log = read_events(path)
    assert [row["kind"] for row in log] == ["format", "format", "status"]
    assert log.num_skipped == 1


@pytest.mark.parametrize("damage", [b"\x00\x00\x00\n", b'{"kind":\n', b'"\xff"\n', b"[1]\n", b'{"t":1}\n'])
def test_a_damaged_line_is_skipped_and_counted(path, damage):
    """Rows before and after damage are read."""
    writer = EventWriter(path)
    writer.write("before")
    with path.open("ab") as file:
        file.write(damage)
    writer.write("after")
    writer.close()
    log = read_events(path)
    assert [row["kind"] for row in log] == ["format", "before", "after"]
    assert log.num_skipped == 1


def test_reopening_appends(path):
    """A second writer keeps the rows of the first."""
    for name in ("one", "two"):
        writer = EventWriter(path)
        writer.write(name)
        writer.close()
    assert [row["kind"] for row in read_events(path)] == ["format", "one", "format", "two"]


def test_a_full_disk_costs_rows_and_not_the_training(path):
    """Past a file size limit rows fail and are counted and reported once; once there is room, rows are whole again."""
    code = """
import json, logging, resource, sys
logging.basicConfig(format="%(name)s %(message)s")
from trackside.events import EventWriter
writer = EventWriter(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
for step in range(100):
    writer.write_metrics({"loss": 0.5}, step=step, epoch=1, mode="train")
num_failed = writer.num_failed
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
for step in range(100, 110):
    writer.write_metrics({"loss": 0.5}, step=step, epoch=1, mode="train")
print(json.dumps([num_failed, writer.num_failed]))
"""
    result = run_python(code, path)
    num_failed, num_failed_at_end = json.loads(result.stdout)
    log = read_events(path)
    steps = [row["step"] for row in log if row["kind"] == "metrics"]
    assert 0 < num_failed < 100
    assert num_failed_at_end == num_failed
    assert steps == [*range(100 - num_failed), *range(100, 110)]
    assert log.num_skipped <= 1
    assert result.stderr.count("could not be written") == 1
    assert str(path) in result.stderr
    assert os.strerror(27) in result.stderr  # EFBIG: the cause


def test_a_device_that_is_full_is_reported_with_its_cause(caplog):
    """ENOSPC from the first row on: nothing is raised, the report names file and cause."""
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with caplog.at_level(logging.ERROR, "trackside.events"):
        writer = EventWriter("/dev/full")
        writer.write("status", status="success")
        writer.close()
    assert writer.num_failed == 2
    (record,) = caplog.records
    assert "/dev/full" in record.getMessage()
    assert "No space left" in record.getMessage()


def test_threads_do_not_tear_each_others_rows(path):
    """Rows written by several threads at once are all whole."""
    writer = EventWriter(path)

    def write(thread):
        for step in range(300):
            writer.write("tick", thread=thread, step=step, padding="x" * 50)

    threads = [threading.Thread(target=write, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    log = read_events(path)
    rows = [row for row in log if row["kind"] == "tick"]
    assert len(rows) == 1200
    assert log.num_skipped == 0


def test_a_closed_writer_counts_rows_as_failed(path, caplog):
    """Closing twice is fine; a row after it is lost, counted and reported."""
    writer = EventWriter(path)
    writer.close()
    writer.close()
    with caplog.at_level(logging.ERROR, "trackside.events"):
        writer.write("late")
    assert writer.closed
    assert writer.num_failed == 1
    assert "closed" in caplog.text


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_a_missing_file_is_a_clear_error(path, make):
    """The error comes at the call, and names the path."""
    make(path)
    with pytest.raises(EventFileError, match=r"events-00000\.jsonl"):
        read_events(path)


def test_a_newer_format_is_refused(path):
    """The error names both versions."""
    path.write_text(f'{{"kind":"format","version":{FORMAT_VERSION + 8}}}\n')
    with pytest.raises(EventFileError, match=f"version {FORMAT_VERSION + 8}.* up to version {FORMAT_VERSION}"):
        list(read_events(path))


def test_the_null_writer_takes_everything():
    """A run without a path writes events to nowhere."""
    writer = NullEventWriter()
    writer.write("status", status="success")
    writer.write_metrics({"loss": math.nan}, step=1, epoch=1, mode="train")
    writer.close()
    assert writer.path is None
    assert writer.num_failed == 0


def test_events_do_not_import_jax():
    """Reading a run works without jax being loaded."""
    run_python("import sys, trackside.events; assert 'jax' not in sys.modules")


@pytest.mark.parametrize("num_bytes_left", range(1, 4))
def test_a_row_that_lacks_its_line_end_counts_as_written(path, num_bytes_left):
    """Where the disk is full right before, at or behind a line end, rows are either read back or counted as failed."""
    code = """
import json, os, resource, sys
from trackside.clock import ManualClock
from trackside.events import EventWriter
writer = EventWriter(sys.argv[1], ManualClock(1.0))
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
size = os.stat(sys.argv[1]).st_size
writer.write_metrics({"loss": 0.5}, step=1, epoch=1, mode="train")
length = os.stat(sys.argv[1]).st_size - size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 2 * length - 2 + int(sys.argv[2]), hard))
for step in range(2, 5):
    writer.write_metrics({"loss": 0.5}, step=step, epoch=1, mode="train")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
writer.write_metrics({"loss": 0.5}, step=5, epoch=1, mode="train")
print(json.dumps(writer.num_failed))
"""
    result = run_python(code, path, str(num_bytes_left - 1))
    steps = [row["step"] for row in read_events(path) if row["kind"] == "metrics"]
    assert len(steps) + json.loads(result.stdout) == 5
    assert steps[-1] == 5


def test_rows_that_are_written_at_once_are_the_same(path):
    """Several rows in one write are read as if they came one by one, also those that are not finite."""
    rows = [({"loss": float(step) if step % 7 else math.nan, "epoch": 1}, step, 1) for step in range(1, 60)]
    writer = EventWriter(path)
    writer.write_metrics_rows(rows[:40], "train")
    writer.write_metrics_rows(rows[40:], "train")
    for values, step, epoch in rows:
        writer.write_metrics(values, step, epoch, "val")
    writer.close()
    read = [row for row in read_events(path) if row["kind"] == "metrics"]
    at_once, one_by_one = ([repr((r["step"], r["values"])) for r in read if r["mode"] == m] for m in ("train", "val"))
    assert at_once == one_by_one
