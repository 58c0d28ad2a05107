"""Runs found below a folder, and event files found in one."""

from pathlib import Path

from tests.runs.written import WrittenRun
from trackside.runs import find_runs
from trackside.runs.run_folders import event_files, process_index_of


def test_runs_in_the_order_of_their_start(tmp_path: Path) -> None:
    """Runs at any depth, the oldest first; folders without event files are none."""
    WrittenRun(tmp_path / "a", start=3000.0)
    WrittenRun(tmp_path / "sweep" / "b", start=1000.0)
    WrittenRun(tmp_path / "sweep" / "c", 1, start=2000.0)
    (tmp_path / "sweep" / "notes").mkdir()
    assert find_runs(tmp_path) == [tmp_path / "sweep" / "b", tmp_path / "sweep" / "c", tmp_path / "a"]


def test_the_folder_itself(tmp_path: Path) -> None:
    """A run's own folder is found."""
    WrittenRun(tmp_path)
    assert find_runs(tmp_path) == [tmp_path]


def test_runs_that_cannot_be_read(tmp_path: Path) -> None:
    """An empty or damaged event file makes a run, too: opening it tells what is wrong."""
    for name, text in (("empty", b""), ("damaged", b"\x00\xff{\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events-00000.jsonl").write_bytes(text)
    assert sorted(find_runs(tmp_path)) == [tmp_path / "damaged", tmp_path / "empty"]


def test_no_folder(tmp_path: Path) -> None:
    """Where there is no folder there are no runs."""
    assert find_runs(tmp_path / "missing") == []


def test_files_of_a_folder(tmp_path: Path) -> None:
    """Event files are found by their names, in the order of processes; other files are none."""
    for name in (
        "events-00010.jsonl",
        "events-00002.jsonl",
        "events-123456.jsonl",
        "events-1.jsonl",
        "events-00002.csv",
    ):
        (tmp_path / name).touch()
    assert list(event_files(tmp_path)) == [2, 10, 123456]
    assert process_index_of(Path("events-00007.jsonl")) == 7
    assert process_index_of(Path("metrics.jsonl")) is None
