"""Trainings that are killed at random moments and continue as if nothing had happened.

One kill per loader is part of the suite; `KILL_LEGS=20` makes it twenty (`make soak`).
"""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from tests import fork_server
from tests.trainer.survival_script import build, train
from tests.trainer.tiny import rows_of

pytestmark = pytest.mark.slow

NUM_LEGS = int(os.environ.get("KILL_LEGS", "1"))


def start(root: pathlib.Path, num_workers: int, num_ahead: int) -> subprocess.Popen[str]:
    return fork_server.Forked(
        [sys.executable, "-m", "tests.trainer.survival_script", str(root), str(num_workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PREFETCH_BATCHES": str(num_ahead)},
    )


def finish(root: pathlib.Path, num_workers: int, num_ahead: int) -> str:
    out, _ = start(root, num_workers, num_ahead).communicate(timeout=300)
    return out.splitlines()[-1]


def losses(root: pathlib.Path) -> dict[int, str]:
    """Each step's loss, bit by bit; a step that was trained twice must have had the same loss both times."""
    found: dict[int, str] = {}
    for row in rows_of(root, mode="train"):
        loss = row["values"]["loss_mean"].hex()
        assert found.setdefault(row["step"], loss) == loss
    return found


def children_of(pid: int) -> list[int]:
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[int, str]]:
    """What an undisturbed training ends with, and its losses. It trains in this process, without workers."""
    root = tmp_path_factory.mktemp("undisturbed") / "whole"
    return f"FINAL {train(build(root, []), num_workers=0)}", losses(root)


@pytest.mark.parametrize(("num_workers", "num_ahead"), [(0, 0), (1, 0), (0, 3)])
def test_killed_at_random_moments(
    num_workers: int, num_ahead: int, whole: tuple[str, dict[int, str]], tmp_path: pathlib.Path
) -> None:
    """Losses and final parameters are bit-identical to an undisturbed run, and no worker outlives the training."""
    seed = int.from_bytes(os.urandom(4))
    print("seed", seed)
    moments = random.Random(seed)
    for _ in range(NUM_LEGS):
        process = start(tmp_path, num_workers, num_ahead)
        with process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(moments.uniform(0.3, 2.5))  # the moment is what the test is about
            children = children_of(process.pid) if process.poll() is None else []
            process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 300
        while any(is_running(child) for child in children) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(is_running(child) for child in children)
    assert (finish(tmp_path, num_workers, num_ahead), losses(tmp_path)) == whole
