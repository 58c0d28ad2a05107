"""A run knows how much fresh memory its steps got from the operating system."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trackside.runs import open_run

BLOCK_BYTES, NUM_BLOCKS = 2 << 20, 16
"""numpy asks for huge pages for larger blocks, of which a step gets too few to be counted."""
NUM_BYTES = NUM_BLOCKS * BLOCK_BYTES
LOOP = f"""
import sys

import numpy as np

import trackside


def allocate(batch):
    blocks = [np.ones({BLOCK_BYTES} // 8) for _ in range({NUM_BLOCKS})]
    return float(sum(block.sum() for block in blocks) + batch)


with trackside.run(sys.argv[1]) as run:
    step = run.step(allocate)
    for batch in run.batches(range(60)):
        run.log(total=step(batch))
"""
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
KEPT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}


@pytest.mark.skipif(sys.platform != "linux", reason="the settings are those of glibc")
@pytest.mark.parametrize(("settings", "is_fresh"), [(GIVEN_BACK, True), (KEPT, False)], ids=["given back", "kept"])
def test_memory_that_steps_give_back_is_counted(tmp_path: Path, settings: dict[str, str], is_fresh: bool) -> None:
    """Each step gets its block as fresh memory, or hardly any with the settings that the finding advises."""
    command = [sys.executable, "-c", LOOP, str(tmp_path / "run")]
    # A fresh interpreter: the C library reads its settings when a process starts.
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    fresh = open_run(tmp_path / "run").facts.fresh_memory
    assert fresh is not None
    assert fresh.num_steps > 10
    assert (fresh.bytes_per_step > 0.9 * NUM_BYTES) == is_fresh
    assert (fresh.bytes_per_step < 0.2 * NUM_BYTES) != is_fresh
