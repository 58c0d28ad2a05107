"""Whether the device idled as long as the ledger says, for steps of a few milliseconds, also on a busy machine.

Steps note on the device when they begin and end (`witness`). The device is idle from the end of a step until the next
was made, or has begun; one that waits for a core has something to do. The ledger's share is true if it is within .05,
or if the interval that comes with it holds the truth.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np

from benchmarks.truth_row import TruthRow, show_rows
from benchmarks.witness import Situation, Witness, train
from trackside.profiling.ledger_totals import LedgerTotals

BOUND = 0.05
FIRST = 10
"""The step from which on idle time is counted: the first compiles."""
SITUATIONS = (
    Situation("fast loader", num_epochs=8, steps_per_call=1),
    Situation("loader of 5 ms", data_s=0.005, num_epochs=8, steps_per_call=1),
    Situation("loader of 15 ms", data_s=0.015, num_epochs=8, steps_per_call=1),
    Situation("loader of 15 ms in Python", data_s=0.015, holds_lock=True, num_epochs=8, steps_per_call=1),
)


def truth_rows() -> Iterator[TruthRow]:
    """The idle share of each situation, on the machine as it is and with all cores taken by other programs."""
    yield from _measure("")
    with _busy_cores():
        yield from _measure(", busy cores")


def _measure(where: str) -> Iterator[TruthRow]:
    for situation in SITUATIONS:
        witness, totals = _train(situation)
        seconds = _idle_and_all_s(witness)
        half = len(seconds) // 2
        yield TruthRow(
            f"idle share, {situation.name}{where}",
            truth=_share(seconds),
            reported=totals.idle_share or 0.0,
            bound=BOUND,
            noise=abs(_share(seconds[:half]) - _share(seconds[half:])),
            is_relative=False,
            interval=totals.idle_share_interval,
        )


def _train(situation: Situation) -> tuple[Witness, LedgerTotals]:
    with tempfile.TemporaryDirectory() as folder:
        return train(situation, pathlib.Path(folder) / "run")


def _idle_and_all_s(witness: Witness) -> np.ndarray:
    """Of each step, the seconds since the end of the one before: those without anything to do, and all."""
    told_s = np.minimum(witness.begins_s, witness.calls_s)[FIRST + 1 :]
    ends_s = witness.ends_s[FIRST:]
    return np.stack([np.maximum(told_s - ends_s[:-1], 0.0), np.diff(ends_s)], axis=1)


def _share(seconds: np.ndarray) -> float:
    idle_s, all_s = seconds.sum(axis=0)
    return float(idle_s / all_s)


@contextlib.contextmanager
def _busy_cores() -> Iterator[None]:
    command = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def main() -> int:
    """How many figures are not true."""
    print("the device's idle share, as the ledger shows it")
    return show_rows(truth_rows())


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
