"""Pipes, devices, sockets and odd names in a run's folder: never opened, never waited for."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.written import WrittenRun, finished_run
from trackside.errors import RunError, TraceError
from trackside.runs import event_file, find_runs, open_run
from trackside.trace import analyse_trace

LOOK = """
import sys
from trackside.runs import find_runs, open_run
for folder in find_runs(sys.argv[1]):
    run = open_run(folder)
    print(folder.name, run.status, run.step, run.config, run.problems)
"""


def look(folder: Path) -> str:
    """What a reader in another process finds: one that hangs is ended, and fails the test."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", LOOK, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=True)
    return done.stdout


def make_special(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device"])
def test_special_files_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A run with something else under the names of its files is read as if these were missing, and so are others."""
    monkeypatch.chdir(tmp_path)  # the path of a socket has to be short
    finished_run(tmp_path / "good")
    finished_run(tmp_path / "odd", num_rows=3)
    (tmp_path / "odd" / "config.json").unlink()
    for name in ("events-00001.jsonl", ".lock", "config.json"):
        make_special(Path("odd", name), kind)
    (tmp_path / "other").mkdir()
    make_special(Path("other", "events-00000.jsonl"), kind)
    found = look(tmp_path).splitlines()
    assert sorted(line.split()[:3] for line in found) == [["good", "success", "100"], ["odd", "success", "30"]]
    with pytest.raises(RunError):
        open_run(tmp_path / "other")


@pytest.mark.parametrize("digits", ["9" * 200, "9" * 10, "٣" * 5])
def test_names_with_other_numbers_are_not_event_files(tmp_path: Path, digits: str) -> None:
    """A number that no process can have is not one."""
    finished_run(tmp_path)
    (tmp_path / f"events-{digits}.jsonl").touch()
    assert open_run(tmp_path).process_indices == [0]


def test_a_stray_file_of_a_high_number_is_quickly_told(tmp_path: Path) -> None:
    """Missing files are counted, however many there would be."""
    finished_run(tmp_path)
    WrittenRun(tmp_path, 999_999_999).leg()
    problems = open_run(tmp_path).problems
    assert problems[:3] == [f"events-0000{index}.jsonl is missing" for index in (1, 2, 3)]
    assert problems[3] == "999999995 more event files up to events-999999998.jsonl are missing"


def test_a_line_without_an_end_is_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no line end for longer than any row is refused, and what came before it is kept."""
    monkeypatch.setattr(event_file, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(event_file, "MAX_LINE_BYTES", 1 << 12)
    finished_run(tmp_path).append(b"x" * (1 << 14))
    run = open_run(tmp_path)
    assert run.step == 100
    assert run.problems[0] == "events-00000.jsonl cannot be read: a line of more than 4,096 bytes"


def test_traces_are_regular_files(tmp_path: Path) -> None:
    """A pipe is not a trace: it is refused by name, and passed by in a folder."""
    os.mkfifo(tmp_path / "host.xplane.pb")
    with pytest.raises(TraceError, match=r"host\.xplane\.pb.*not a regular file"):
        analyse_trace(tmp_path / "host.xplane.pb")
    with pytest.raises(TraceError, match="holds no"):
        analyse_trace(tmp_path)


def test_folders_that_vanish_are_no_runs(tmp_path: Path) -> None:
    """A folder that is not there, or may not be read, has no runs."""
    assert find_runs(tmp_path / "gone") == []
