"""Fails if the trainer got slower next to a hand-written loop than the stored baseline says: `make bench-check`.

Machines differ, so what is stored and compared is the ratio to a hand-written loop that is measured in the same rounds.
The interval of a change is that of `trackside.compare`: both sides are drawn again by its bootstrap. A change counts
only if its whole interval is beyond the limit.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from benchmarks.peers.__main__ import measure_task
from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.results import Result
from trackside.compare import Difference
from trackside.compare.bootstrap import resampled
from trackside.compare.difference import CONFIDENCE

BASELINE = Path(__file__).parent.parent / "baseline.json"
TASKS = ("mlp-2", "mlp-4", "char-5ms")
REFERENCE = "same work"
MAX_SLOWDOWN = 0.1
Ratios = dict[str, list[float]]
"""By task and contestant, the ratio to the hand-written loop in each round."""


def measure(num_rounds: int) -> Ratios:
    """Measure the contestants of the short form."""
    names = [one.name for one in CONTESTANTS.values() if one.is_short]
    found: Ratios = {}
    for task in TASKS:
        print(task, flush=True)
        results = {one.contestant: one for one in measure_task(task, names, num_rounds)}
        for name in names:
            if name != REFERENCE:
                found[f"{task}: {name}"] = _ratios(results[name], results[REFERENCE])
    return found


def _ratios(one: Result, reference: Result) -> list[float]:
    return [a / b for a, b in zip(one.rounds_s, reference.rounds_s, strict=True)]


def compare(before: Ratios, after: Ratios) -> list[Difference]:
    """What changed since the baseline, each with its interval."""
    rng = np.random.default_rng(0)
    return [_compare(name, np.array(before[name]), np.array(after[name]), rng) for name in before if name in after]


def _compare(name: str, before: np.ndarray, after: np.ndarray, rng: np.random.Generator) -> Difference:
    drawn = [resampled(side, lambda rows: np.median(rows, axis=1), rng) for side in (before, after)]
    low, high = np.quantile(drawn[1] - drawn[0], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Difference(name, float(np.median(before)), float(np.median(after)), "count", float(low), float(high))


def is_slower(difference: Difference, max_slowdown: float) -> bool:
    """Whether even the lower end of the interval is beyond the limit."""
    assert difference.before is not None
    assert difference.low is not None
    return difference.low > max_slowdown * difference.before


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.check", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--max-slowdown", type=float, default=MAX_SLOWDOWN)
    parser.add_argument("--store", action="store_true", help="store what is measured as the baseline")
    chosen = parser.parse_args(arguments)
    measured = measure(chosen.rounds)
    if chosen.store:
        rounded = {name: [round(ratio, 4) for ratio in ratios] for name, ratios in measured.items()}
        BASELINE.write_text(json.dumps(rounded, indent=1) + "\n")
        print(f"stored in {BASELINE}")
        return 0
    differences = compare(json.loads(BASELINE.read_text()), measured)
    for one in differences:
        word = "SLOWER" if is_slower(one, chosen.max_slowdown) else "ok"
        print(f"{one.name:24} {one.before:.2f}x -> {one.after:.2f}x ({one.low:+.2f} to {one.high:+.2f})  {word}")
    return int(any(is_slower(one, chosen.max_slowdown) for one in differences))


if __name__ == "__main__":
    sys.exit(main())
