"""Whether a step took what the report says: percentiles of step times, next to those of the device's own ends.

    python -m benchmarks.step_truth
    python -m benchmarks.step_truth "slow loader" spikes

Epochs have 20 steps. A step's time is from its predecessor's end to its own, as the steps note themselves on the device
(`witness`), over the same steps that the report counts. The noise is how far the truth of odd epochs is from that of
even ones. A busy machine can interrupt a step between its note and its end, so a situation that comes out wrong is
tried again, and the last attempt counts.
"""

import argparse
import dataclasses
import pathlib
import sys
import tempfile
from collections.abc import Iterable, Iterator

import numpy as np

from benchmarks.truth_row import TruthRow, show_rows
from benchmarks.witness import STEPS_PER_EPOCH, Situation, Witness, train
from trackside.report.step_time_summary import summarise_step_times
from trackside.runs import StepTimes, open_run

BOUND = 0.1
NUM_ATTEMPTS = 3
PERCENTILES = ("p50_s", "p95_s", "p99_s")
SITUATIONS = (
    Situation("fast loader"),
    Situation("slow loader", data_s=0.010),
    Situation("slow loader, rows of 5", data_s=0.010, log_every_n_steps=5),
    Situation("loader in Python", data_s=0.010, holds_lock=True),
    Situation("spikes", spike_every_n_steps=17),
    Situation("spikes while data is awaited", data_s=0.015, spike_every_n_steps=12, spike_factor=2),
    Situation("validations", data_s=0.010, validates=True),
    Situation("checkpoints", data_s=0.010, save_every_n_steps=33),
    Situation("all of them", data_s=0.010, spike_every_n_steps=17, validates=True, save_every_n_steps=33),
)


def truth_rows(situations: Iterable[Situation] = SITUATIONS) -> Iterator[TruthRow]:
    """The percentiles of each situation, next to their truth."""
    for situation in situations:
        for _ in range(NUM_ATTEMPTS):
            rows = _measure(situation)
            if all(row.is_true for row in rows):
                break
        yield from rows


def _measure(situation: Situation) -> list[TruthRow]:
    with tempfile.TemporaryDirectory() as folder:
        witness, _ = train(situation, pathlib.Path(folder) / "run")
        times = open_run(pathlib.Path(folder) / "run").step_times
    truth = _true_times(times, witness)
    is_odd = (truth.step - 1) // STEPS_PER_EPOCH % 2 == 1
    halves = _of(truth, is_odd), _of(truth, ~is_odd)
    found = []
    for name in PERCENTILES:
        true_ms, reported_ms, *half_ms = (_percentile_ms(each, name) for each in (truth, times, *halves))
        noise = abs(half_ms[0] - half_ms[1]) / true_ms
        found.append(TruthRow(f"{situation.name}: {name[:-2]}", true_ms, reported_ms, BOUND, noise, "ms"))
    return found


def _true_times(times: StepTimes, witness: Witness) -> StepTimes:
    """The same intervals, with what their steps took on the device."""
    ends_s = np.array([np.nan, *witness.ends_s])
    return dataclasses.replace(
        times, seconds=(ends_s[times.step] - ends_s[times.step - times.num_steps]) / times.num_steps
    )


def _of(times: StepTimes, chosen: np.ndarray) -> StepTimes:
    return StepTimes(**{field.name: getattr(times, field.name)[chosen] for field in dataclasses.fields(times)})


def _percentile_ms(times: StepTimes, name: str) -> float:
    summary = summarise_step_times(times)
    return float("nan") if summary is None else 1e3 * getattr(summary, name)


def main(arguments: list[str] | None = None) -> int:
    """How many figures are not true."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {situation.name: situation for situation in SITUATIONS}
    parser.add_argument("names", nargs="*", metavar="situation", help=f"all if left out: {', '.join(known)}")
    names = parser.parse_args(arguments or []).names
    if unknown := set(names) - set(known):
        parser.error(f"unknown situations {sorted(unknown)}; there are {', '.join(known)}")
    print("step times, as the report shows them")
    return show_rows(truth_rows([known[name] for name in names] or SITUATIONS))


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
