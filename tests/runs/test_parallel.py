"""A large file read in parts gives what one reading gives."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.runs.written import WrittenRun
from trackside.runs.event_file import EventFile
from trackside.runs.parallel import part_starts, read_parts
from trackside.runs.row_collector import RowCollector


def write_run(folder: Path) -> Path:
    """Two legs, several modes, a metric that comes late, and damage in the middle."""
    written = WrittenRun(folder).leg(1)
    for step in range(1, 3001):
        late = {"late": 1.0} if step > 1500 else {}
        written.metrics(step, loss=float(step), **late)
        if step % 50 == 0:
            written.metrics(step, "val", accuracy=0.5).ledger(step, step, dispatch=1.0)
        if step == 2000:
            written.append(b'{"kind":"metrics","t":3\n')
            written.leg(2, step=1000)
    written.append(b'{"kind":"status","t":9')
    return written.path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("large"))


def read_whole(path: Path) -> tuple[RowCollector, EventFile]:
    file, collected = EventFile(path), RowCollector()
    for block in file.blocks():
        collected.add_block(block)
    return collected, file


def assert_same(found: RowCollector, expected: RowCollector) -> None:
    for name in (
        "rows",
        "before_legs",
        "started_at",
        "ended_at",
        "step",
        "epoch",
        "version",
        "cut_step",
        "num_damaged",
    ):
        assert getattr(found, name) == getattr(expected, name), name
    assert set(found.metrics) == set(expected.metrics)
    for mode in expected.metrics:
        ours, theirs = found.metrics[mode].table(), expected.metrics[mode].table()
        np.testing.assert_array_equal(ours.step, theirs.step)
        np.testing.assert_array_equal(ours.t, theirs.t)
        for name in theirs.names:
            np.testing.assert_array_equal(ours[name], theirs[name])


@pytest.mark.slow
def test_parts_give_the_whole(path: Path) -> None:
    """Rows, metrics and counts are the same, and reading goes on from the same place."""
    file = EventFile(path)
    starts = [0, *(file.line_end_after(path.stat().st_size * part // 4) for part in (1, 2, 3))]
    found = read_parts(file, starts)
    expected, whole = read_whole(path)
    assert_same(found, expected)
    assert (file.offset, file.num_pending) == (whole.offset, whole.num_pending)
    assert not file.was_replaced()


def test_parts_are_read_here_if_no_process_can_be_started(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an interpreter to start, all is read in this process."""
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    file = EventFile(path)
    found = read_parts(file, [0, file.line_end_after(path.stat().st_size // 2)])
    assert_same(found, read_whole(path)[0])


def test_number_of_parts(path: Path) -> None:
    """A small file is read at once; a large one by as many processes as there are processors, in whole lines."""
    assert part_starts(EventFile(path)) == [0]
    starts = part_starts(EventFile(path), min_bytes=1000, head_start_bytes=50_000)
    assert len(starts) == min(len(os.sched_getaffinity(0)), 8)
    if len(starts) > 1:
        assert path.stat().st_size - starts[-1] > starts[1] + 40_000  # the last part, which is read here, is larger
    data = path.read_bytes()
    assert all(data[start - 1 : start] == b"\n" for start in starts[1:])
