"""Measures trackside next to hand-written loops and peers, and writes the results: `make bench-peers`."""

import argparse
import statistics
from itertools import zip_longest
from pathlib import Path

from benchmarks.peers.contestant_process import ContestantError, ContestantProcess
from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.results import Result, Results, to_markdown
from benchmarks.peers.tasks import TASKS

FOLDER = Path(__file__).parent.parent


def measure_task(task: str, names: list[str], num_rounds: int) -> list[Result]:
    """Start everyone, and measure them in turn. Who cannot take part is named, and left out."""
    started: dict[str, list[ContestantProcess]] = {}
    for name in names:
        try:
            for _ in range(CONTESTANTS[name].num_processes):
                started.setdefault(name, []).append(ContestantProcess.start(name, task))
        except ContestantError as error:
            print(f"  left out: {error}", flush=True)
    turns = [one for copies in zip_longest(*started.values()) for one in copies if one is not None]
    try:
        for round_index in range(num_rounds):
            for one in turns if round_index % 2 else reversed(turns):
                one.measure()
    finally:
        for one in turns:
            one.stop()
    results = [Result(task, name, _rounds_of(copies)) for name, copies in started.items()]
    for one in results:
        best_us, median_us = one.best_s * 1e6, one.median_s * 1e6
        print(f"  {one.contestant:14} best {best_us:10,.1f} us, median {median_us:10,.1f} us per step", flush=True)
    return results


def _rounds_of(copies: list[ContestantProcess]) -> tuple[float, ...]:
    """The seconds per step of each round: the median over the processes of a contestant."""
    return tuple(statistics.median(figures) for figures in zip(*(one.rounds_s for one in copies), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--contestants", nargs="*", default=list(CONTESTANTS), choices=list(CONTESTANTS))
    parser.add_argument("--output", type=Path, default=FOLDER / "RESULTS.md")
    arguments = parser.parse_args()
    found: list[Result] = []
    for task in arguments.tasks:
        print(f"{task}: {TASKS[task].title}", flush=True)
        found += measure_task(task, arguments.contestants, arguments.rounds)
    results = Results(found)
    results.save(arguments.output.with_suffix(".json"))
    plot = arguments.output.with_suffix(".png")
    from benchmarks.peers.plot import draw  # matplotlib is only needed here

    draw(results, plot)
    arguments.output.write_text(to_markdown(results, arguments.rounds, plot.name))
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
