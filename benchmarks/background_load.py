"""Other programs on the machine, as a benchmark starts them itself: what is measured should hold next to them too."""

import contextlib
import multiprocessing
import os
import random
import time
from collections.abc import Iterator

import numpy as np

MAX_BURST_S = 6.0
"""A program computes or waits for as long as this, and for a tenth of a second at least."""
NUM_VALUES = 1 << 19
"""Large enough that it takes the caches from others, too."""


@contextlib.contextmanager
def background_load(num_programs: int | None = None, seed: int = 0) -> Iterator[None]:
    """Let other programs compute by turns for as long as the block takes.

    Each computes for a while and then waits for a while, so that the load of the machine changes within seconds as well
    as from one training to the next.

    Args:
        num_programs: How many; as many as there are cores if left out, which keeps half of the machine busy.
        seed: What their turns depend on.
    """
    num_programs = len(os.sched_getaffinity(0)) if num_programs is None else num_programs
    context = multiprocessing.get_context("spawn")  # a fork of a process in which jax has threads may hang
    programs = [
        context.Process(target=_compute_by_turns, args=(1000 * seed + index, os.getpid()), daemon=True)
        for index in range(num_programs)
    ]
    for program in programs:
        program.start()
    try:
        yield
    finally:
        for program in programs:
            program.terminate()
            program.join()


def _compute_by_turns(seed: int, benchmark_pid: int) -> None:
    rng, values = random.Random(seed), np.ones(NUM_VALUES)
    while os.getppid() == benchmark_pid:  # not beyond its benchmark, however that ended
        burst_ends_s = time.perf_counter() + _length_s(rng)
        while time.perf_counter() < burst_ends_s:
            np.sqrt(values, out=values)
        time.sleep(_length_s(rng))


def _length_s(rng: random.Random) -> float:
    """Most are short, some long."""
    return 0.1 * (MAX_BURST_S / 0.1) ** rng.random()
