"""Workers of a loader: they live as long as the training, also where the training is process 1, and no longer."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fork_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="parents are watched on Linux only"),
]

START = """
import multiprocessing, os
from trackside.trainer.workers import exit_with_parent
worker = multiprocessing.get_context("fork").Process(target=exit_with_parent)
worker.start()
worker.join()
print("pid", os.getpid(), "exit code", worker.exitcode)
"""

ORPHAN = """
import multiprocessing, os, pathlib, signal, sys
from trackside.trainer.workers import exit_with_parent

def work(file):
    os.write(1, b"ready\\n")
    multiprocessing.parent_process().join()
    os.write(1, b"orphaned\\n")
    exit_with_parent()
    pathlib.Path(file).touch()

worker = multiprocessing.get_context("fork").Process(target=work, args=(sys.argv[1],))
worker.start()
worker.join()
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONWARNINGS": "ignore"}  # importing JAX starts threads, and fork warns of them


def test_worker_of_process_1_lives() -> None:
    """In a container the training has process id 1, and its workers start as anywhere else."""
    enter = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*enter, "true"], capture_output=True).returncode:
        pytest.skip("a new process id namespace needs `unshare` and the right to use it")
    done = subprocess.run(
        [*enter, sys.executable, "-c", START], capture_output=True, text=True, timeout=300, env=environment()
    )
    assert done.stdout == "pid 1 exit code 0\n", done.stderr


def test_worker_whose_parent_is_dead_already_ends(tmp_path: Path) -> None:
    """A training that is killed before its worker asks to end with it leaves no worker, whoever adopts it."""
    file = tmp_path / "outlived"
    training = fork_server.Forked(
        [sys.executable, "-c", ORPHAN, str(file)], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert training.stdout is not None
    assert training.stdout.readline() == "ready\n"
    training.send_signal(signal.SIGKILL)
    training.wait()
    assert training.stdout.read() == "orphaned\n"  # the pipe ends when the worker does
    training.stdout.close()
    assert not file.exists()
