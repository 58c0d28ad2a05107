"""Finished, running or dead: the status row, and the lock where there is none."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.written import WrittenRun, finished_run
from trackside.runs import open_run

HOLD = """
import fcntl, os, socket, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
file.write(f"pid {os.getpid()} on {socket.gethostname()}\\n")
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen]:
    """The folder's lock as a training holds it, in another process."""
    command = [sys.executable, "-c", HOLD, str(folder / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_running_until_killed(tmp_path: Path) -> None:
    """A run without a status is running while its lock is held, and dead as soon as its process was killed."""
    written = WrittenRun(tmp_path).with_config_file().leg().metrics(5, loss=1.0)
    written.append(b'{"kind":"metrics","t":1')
    with held(tmp_path) as process:
        run = open_run(tmp_path)
        assert (run.status, run.is_finished, run.problems) == ("running", False, [])
        assert [leg.status for leg in run.legs] == ["running"]
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert run.refresh()
    assert (run.status, run.is_finished, len(run.problems)) == ("dead", False, 1)


def test_lock_file_of_a_run_that_ended(tmp_path: Path) -> None:
    """A lock file that nobody holds says nothing."""
    (tmp_path / ".lock").write_text("")
    WrittenRun(tmp_path).leg()
    assert open_run(tmp_path).status == "dead"


def test_looking_leaves_the_lock_free(tmp_path: Path) -> None:
    """After a look, a training can take the lock."""
    WrittenRun(tmp_path).leg()
    (tmp_path / ".lock").touch()
    open_run(tmp_path)
    with (tmp_path / ".lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(("age_s", "status"), [(0, "running"), (3600, "dead")])
def test_lock_of_another_machine(tmp_path: Path, age_s: float, status: str) -> None:
    """A lock that may not be seen from here: a file that was written to just now is taken for one of a running run."""
    written = WrittenRun(tmp_path).leg()
    (tmp_path / ".lock").write_text("pid 7 on another-machine\n")
    written_at = written.path.stat().st_mtime - age_s
    os.utime(written.path, (written_at, written_at))
    assert open_run(tmp_path).status == status


def test_evaluation_after_the_end(tmp_path: Path) -> None:
    """A finished run that was opened again to be evaluated is finished."""
    written = finished_run(tmp_path)
    written.write("format", version=1).metrics(100, "test", loss=1.0)
    assert open_run(tmp_path).status == "success"


def test_training_that_goes_on(tmp_path: Path) -> None:
    """A finished run that is trained again is running while the lock is held, from its first row on, and then dead."""
    written = finished_run(tmp_path)
    written.write("format", version=1)
    with held(tmp_path):
        assert open_run(tmp_path).status == "running"
        written.leg(2, step=100)
        assert open_run(tmp_path).status == "running"
    assert open_run(tmp_path).status == "dead"
