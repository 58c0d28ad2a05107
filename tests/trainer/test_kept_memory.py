"""Steps reuse memory that the C library would give back to the system."""

import itertools
import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fork_server import run
from tests.trainer.tiny import rows_of
from trackside.trainer import kept_memory
from trackside.trainer.kept_memory import FIRST_LOOK, MAX_LOOK, MIN_BYTES_PER_STEP, MIN_KEPT_BYTES, KeptMemory, can_keep

LARGE = MIN_KEPT_BYTES
TRAINING = """
import json
import sys
from pathlib import Path

import flax.linen as nn
import numpy as np

from tests.trainer.tiny import make_trainer
from trackside.logger import LoggerConfig
from trackside.trainer import Batch
from trackside.profiling.fresh_memory import fresh_bytes


class Wide(nn.Module):
    config: object = None

    @nn.compact
    def __call__(self, x, train=False):
        return nn.Dense(1)(nn.tanh(nn.Dense(8192)(x)))


batch = Batch(np.ones((512, 4), np.float32), np.ones((512, 1), np.float32))
trainer = make_trainer(
    model_class=Wide,
    batch=batch,
    logger=LoggerConfig(log_path=Path(sys.argv[1])),
    keep_host_memory=sys.argv[2] == "yes",
)
trainer.train_model([batch] * 12, num_train_steps=12)
before = fresh_bytes()
trainer.train_model([batch] * 12, num_train_steps=24)
print(json.dumps((fresh_bytes() - before) / 12))
"""
"""Steps whose intermediate results take some 50 MB, more than glibc keeps and less than it can keep."""

pytestmark = pytest.mark.skipif(not can_keep(), reason="memory is kept with glibc only, unless it was told otherwise")


def bytes_per_step(folder: Path, wanted: str, **environment: str) -> float:
    """How much fresh memory a step gets, after some steps, in a process of its own."""
    command = [sys.executable, "-c", TRAINING, str(folder), wanted]
    done = run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_large_steps_reuse_their_memory(tmp_path: Path) -> None:
    """After the first steps, a step gets hardly any fresh memory, and the run says from when on."""
    fresh = bytes_per_step(tmp_path, "yes")
    (row,) = rows_of(tmp_path, "memory_kept")
    assert row["bytes_per_step"] > 8 << 20
    assert 2 * FIRST_LOOK <= row["step"] < 12
    assert fresh < row["bytes_per_step"] / 4


@pytest.mark.parametrize(
    ("wanted", "environment"),
    [("no", {}), ("yes", {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)})],
    ids=["config", "variable"],
)
def test_whoever_objects_is_heard(tmp_path: Path, wanted: str, environment: dict[str, str]) -> None:
    """Neither a config that says no nor a setting of the C library by the user is overruled."""
    fresh = bytes_per_step(tmp_path, wanted, **environment)
    assert fresh > MIN_BYTES_PER_STEP
    assert not rows_of(tmp_path, "memory_kept")


class Looking:
    """Steps with some fresh memory each, and what was asked of the C library."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.kept: list[int] = []
        self.rows: list[dict[str, Any]] = []
        self.step = self.so_far = 0
        monkeypatch.setattr(kept_memory, "keep_freed_memory", lambda size: self.kept.append(size) or True)
        run_log: Any = SimpleNamespace(write=lambda kind, **fields: self.rows.append({"kind": kind, **fields}))
        self.memory = KeptMemory(run_log, is_wanted=True)

    def train(self, num_steps: int, bytes_per_step: int) -> list[int]:
        """Make steps, and give those after which it looked."""
        looks = []
        for _ in range(num_steps):
            self.step, self.so_far = self.step + 1, self.so_far + bytes_per_step
            if self.step >= self.memory.next_step:
                looks.append(self.step)
                self.memory.look(self.step, self.so_far)
        return looks

    def validate(self, num_bytes: int) -> None:
        """Allocate something between two steps."""
        self.memory.break_off(self.step, self.so_far)
        self.so_far += num_bytes


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Looking:
    return Looking(monkeypatch)


def test_more_is_kept_than_a_step_gets(looking: Looking) -> None:
    """It is asked for once, with room for larger blocks, and never looks again."""
    looks = looking.train(100, LARGE)
    last = 1 + 2 * FIRST_LOOK
    assert looks == [1, 1 + FIRST_LOOK, last]
    assert looking.kept == [4 * LARGE]
    assert looking.rows == [{"kind": "memory_kept", "step": last, "bytes_per_step": LARGE}]
    looking.validate(LARGE)
    assert looking.memory.next_step == math.inf


def test_blocks_larger_than_the_average_are_kept(looking: Looking) -> None:
    """A block of which only a part is fresh at each step, or which not every step allocates, is kept as a whole."""
    looking.train(100, MIN_BYTES_PER_STEP)
    assert looking.kept == [MIN_KEPT_BYTES]


def test_the_first_steps_do_not_count(looking: Looking) -> None:
    """They get memory for the first time, which is no sign that later ones will."""
    looking.train(FIRST_LOOK, LARGE)
    looking.train(5000, 0)
    assert not looking.kept


def test_small_steps_are_looked_at_less_and_less(looking: Looking) -> None:
    """Steps with little fresh memory change nothing, and looks come after twice as many steps, up to a limit."""
    looks = looking.train(5000, MIN_BYTES_PER_STEP // 2)
    gaps = [later - earlier for earlier, later in itertools.pairwise(looks)]
    assert gaps[:4] == [FIRST_LOOK, FIRST_LOOK, 2 * FIRST_LOOK, 4 * FIRST_LOOK]
    assert max(gaps) == MAX_LOOK
    assert not looking.kept


def test_steps_that_grow_are_noticed(looking: Looking) -> None:
    """A training with larger batches later is found then."""
    looking.train(100, MIN_BYTES_PER_STEP // 2)
    assert not looking.kept
    looking.train(2 * MAX_LOOK, LARGE)
    assert len(looking.kept) == 1


@pytest.mark.parametrize("num_steps", [2, 3, 50])
def test_what_others_allocate_does_not_count(looking: Looking, num_steps: int) -> None:
    """Memory that validations get between steps is not taken for that of steps, however often they come."""
    for _ in range(40):
        looking.train(num_steps, 0)
        looking.validate(100 * LARGE)
    assert not looking.kept


@pytest.mark.parametrize("num_steps", [2, 3, 50])
def test_steps_between_validations_count(looking: Looking, num_steps: int) -> None:
    """Fresh memory is found also where validations come every two steps."""
    for _ in range(40):
        looking.train(num_steps, LARGE)
        looking.validate(0)
    assert looking.kept == [4 * LARGE]


def test_a_compilation_does_not_count(looking: Looking) -> None:
    """What a compilation in the midst of steps allocates is left out."""
    looking.train(2 * FIRST_LOOK, 0)
    looking.so_far += 100 * LARGE
    looking.memory.leave_out()
    looking.train(5000, 0)
    assert not looking.kept


def test_where_nothing_can_be_kept_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator, and where the C library knows nothing of it, there is no look at all."""
    run_log: Any = SimpleNamespace()
    assert KeptMemory(run_log, is_wanted=False).next_step == math.inf
    monkeypatch.setattr(kept_memory, "can_keep", lambda: False)
    memory = KeptMemory(run_log, is_wanted=True)
    memory.break_off(1)
    assert memory.next_step == math.inf
