"""Measures trackside next to hand-written loops and peers, and writes the results: `make bench-peers`."""

import argparse
from pathlib import Path

from benchmarks.peers.contestant_process import ContestantError, ContestantProcess
from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.results import Result, Results, to_markdown
from benchmarks.peers.tasks import TASKS

FOLDER = Path(__file__).parent.parent


def measure_task(task: str, names: list[str], num_rounds: int) -> list[Result]:
    """Start everyone, and measure them in turn. Who cannot take part is named, and left out."""
    started: list[ContestantProcess] = []
    for name in names:
        try:
            started.append(ContestantProcess.start(name, task))
        except ContestantError as error:
            print(f"  left out: {error}", flush=True)
    try:
        for round_index in range(num_rounds):
            for one in started if round_index % 2 else reversed(started):
                one.measure()
    finally:
        for one in started:
            one.stop()
    for one in started:
        best, median = min(one.rounds_s) * 1e6, sorted(one.rounds_s)[len(one.rounds_s) // 2] * 1e6
        print(f"  {one.name:14} best {best:10,.1f} us, median {median:10,.1f} us per step", flush=True)
    return [Result(task, one.name, tuple(one.rounds_s)) for one in started]


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
