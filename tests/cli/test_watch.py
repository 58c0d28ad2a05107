"""`trackside watch`: on runs that do not exist yet, that another process trains, that end, and that die."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tiny_run import command, plain_environment
from tests.fork_server import Forked
from trackside import cli

ROOT = Path(__file__).parent.parent.parent


HOLDER = """
import sys, time
from pathlib import Path
from trackside.logger import Logger, LoggerConfig
from trackside.measured_run.run_lock import RunLock

with RunLock(Path(sys.argv[1])):
    Logger(LoggerConfig(log_path=sys.argv[1]))
    print("held", flush=True)
    time.sleep(600)
"""
"""Holds a run as a training does that has not made a step yet."""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes, which end with the test."""
    children: list[subprocess.Popen[str]] = []

    def start_one(words: list[str], starter: Any = subprocess.Popen) -> subprocess.Popen[str]:
        child = starter(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=plain_environment(), cwd=ROOT
        )
        children.append(child)
        return child

    yield start_one
    for child in children:
        child.kill()
        child.communicate()


def training(path: Path, num_steps: int) -> list[str]:
    return [sys.executable, "-m", "tests.cli.watched_script", str(path), str(num_steps)]


def test_one_look_at_a_finished_run(trained_run: Path, capsys: pytest.CaptureFixture) -> None:
    """`--once` prints one picture within 80 columns: status, progress, the bar by letters, and losses."""
    assert cli.run(["watch", str(trained_run), "--once"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("tiny  success")
    assert "train_loss" in out
    assert "val_loss" in out
    assert "C compiling" in out
    assert max(map(len, out.splitlines())) <= 80


def test_finished_run_ends_the_watch(trained_run: Path, capsys: pytest.CaptureFixture) -> None:
    """A run that is over is shown once, its findings too, and the command ends."""
    assert cli.run(["watch", str(trained_run), "--interval", "0.01"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("success  step 93 of 93, epoch 3")


def test_findings_are_silenced(trained_run: Path, capsys: pytest.CaptureFixture) -> None:
    """In the picture, which says so, and in lines."""
    silence = ["--silence", "ragged-last-batch"]
    assert cli.run(["watch", str(trained_run), "--once", *silence]) == 0
    out = capsys.readouterr().out
    assert "1 finding silenced (ragged-last-batch)" in out
    assert cli.run(["watch", str(trained_run), "--interval", "0.01", *silence]) == 0
    assert "ragged-last-batch:" not in out + capsys.readouterr().out


def test_run_that_does_not_exist_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """One look at nothing says that there is nothing yet."""
    assert cli.run(["watch", str(tmp_path / "later"), "--once"]) == 0
    assert "waiting for a run at" in capsys.readouterr().out


def test_interval_has_to_be_positive(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """An interval of nothing is refused by its name."""
    assert cli.run(["watch", str(tmp_path), "--interval", "0"]) == 2
    assert "--interval" in capsys.readouterr().err


@pytest.mark.slow
def test_training_in_another_process_is_followed_to_its_end(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Started before the run exists, the watch waits, shows the steps as they come, and ends with the run."""
    path = tmp_path / "run"
    watch = start(command("watch", path, "--interval", "0.05"))
    assert watch.stdout is not None
    assert "waiting for a run" in watch.stdout.readline()
    trained = start(training(path, num_steps=300), Forked)
    out, errors = watch.communicate(timeout=300)
    assert watch.returncode == 0
    assert errors == ""
    lines = out.splitlines()
    assert any(line.startswith("running  step") for line in lines)
    assert lines[-1].startswith("success  step 300 of 300")
    assert len(set(lines)) == len(lines)
    trained.communicate(timeout=300)
    assert trained.returncode == 0


@pytest.mark.slow
def test_killed_training_ends_the_watch(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    """A training that is killed while it makes steps is said to be dead, and the watch ends."""
    path = tmp_path / "run"
    trained = start(training(path, num_steps=100_000), Forked)
    watch = start(command("watch", path, "--interval", "0.05"))
    assert watch.stdout is not None
    while not re.search("running  step [1-9]", watch.stdout.readline()):
        assert trained.poll() is None
    trained.send_signal(signal.SIGKILL)
    out, _ = watch.communicate(timeout=300)
    assert watch.returncode == 0
    assert out.splitlines()[-1].startswith("dead  step")


@pytest.mark.slow
def test_training_killed_before_its_first_step_ends_the_watch(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Killed while it is being set up, a run has not started, and nothing is waited for."""
    path = tmp_path / "run"
    holder = start([sys.executable, "-c", HOLDER, str(path)])
    assert holder.stdout is not None
    holder.stdout.readline()
    watch = start(command("watch", path, "--interval", "0.05"))
    assert watch.stdout is not None
    while "running" not in watch.stdout.readline():
        assert holder.poll() is None
    holder.send_signal(signal.SIGKILL)
    out, _ = watch.communicate(timeout=300)
    assert watch.returncode == 0
    assert out.splitlines()[-1].startswith("not started")


@pytest.mark.slow
@pytest.mark.usefixtures("default_signals")
def test_picture_in_a_terminal_ends_by_ctrl_c(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    """In a terminal the picture is drawn in place; Ctrl-C ends it with exit code 0 and the cursor back."""
    path = tmp_path / "run"
    start(training(path, num_steps=100_000), Forked)
    main, other = pty.openpty()
    watch = subprocess.Popen(
        command("watch", path, "--interval", "0.05"),
        stdin=other,
        stdout=other,
        stderr=other,
        env=plain_environment({"TERM": "xterm-256color", "COLUMNS": "80"}),
        start_new_session=True,
    )
    os.close(other)
    seen = read_until(main, b"steps per second")
    watch.send_signal(signal.SIGINT)
    seen += read_until(main, None)
    assert watch.wait(timeout=300) == 0
    os.close(main)
    assert b"\x1b[2K" in seen  # lines are drawn over
    assert seen.rstrip().endswith(b"\x1b[?25h")  # the cursor is shown again
    assert b"Traceback" not in seen


def read_until(descriptor: int, word: bytes | None) -> bytes:
    """What a terminal shows until a word comes, or to its end."""
    seen = b""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and (word is None or word not in seen):
        try:
            block = os.read(descriptor, 65536)
        except OSError:  # how the end of a terminal reads on Linux
            break
        if not block:
            break
        seen += block
    return seen
