"""How often `trackside compare` says a wrong word, and how often it finds a slowdown of 10 and of 25 %.

    python -m benchmarks.compare_calibration --pairs 100 --runs /tmp/calibration
    python -m benchmarks.compare_calibration --pairs 100 --runs /tmp/calibration --mode loaded

For each pair, four short trainings are run in two processes: two of the same program, and two whose step has more work
(`benchmarks.calibration_trainings`). Of the first two, none must be called slower or faster; those with more work
should be called slower. With `--same-only`, only the first two are run, which takes half of the time. In the mode
`quiet` nothing else is started, and in the mode `loaded` programs that compute by turns run at the same time.

Trainings are kept in the folder `--runs`: one that is there is not run again, so that a measurement can be interrupted
and continued, and the same trainings can be judged again after a change to the statistics (`--judge-only`).
"""

import argparse
import contextlib
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.background_load import background_load
from benchmarks.truth_row import TruthRow
from trackside.compare import Comparison, compare_runs

MAX_SLOWDOWN = "5%"
MAX_CHANGE = 0.05
MODES = ("quiet", "loaded")
KINDS = ("tower", "wide", "loader", "mlp")
STEPS = {"tower": (600, 1500, 3000), "mlp": (600, 1500, 3000), "loader": (600, 1500, 3000), "wide": (200, 400)}
PROCESSES = (("first", "slowed25"), ("second", "slowed10"))
"""The trainings of a pair that share a process, so that those which are compared do not."""
COMPARED = {"one program": ("first", "second"), "10 %": ("first", "slowed10"), "25 %": ("second", "slowed25")}


@dataclass(frozen=True)
class Pair:
    """Trainings that are compared with each other."""

    folder: pathlib.Path
    index: int
    kind: str
    num_steps: int

    @classmethod
    def planned(cls, folder: pathlib.Path, index: int, num_steps: int | None) -> "Pair":
        """The pair of a number: programs take turns, and the number of steps is drawn."""
        kind = KINDS[index % len(KINDS)]
        return cls(folder, index, kind, num_steps or random.Random(index).choice(STEPS[kind]))

    def path(self, name: str) -> pathlib.Path:
        """Where one of its trainings is."""
        return self.folder / f"{self.index:03d}-{self.kind}-{self.num_steps}-{name}"

    def has(self, names: Iterable[str]) -> bool:
        """Whether trainings are there."""
        return all(self.path(name).exists() for name in names)

    def run(self, same_only: bool = False) -> None:
        """Run the trainings that are not there yet, in random order."""
        rng = random.Random(self.index)
        cores = sorted(os.sched_getaffinity(0))
        core = ["--core", str(rng.choice(cores))] if self.kind == "tower" else []
        processes = [names[:1] for names in PROCESSES] if same_only else PROCESSES
        for names in rng.sample(processes, len(processes)):
            paths = [self.path(name) for name in rng.sample(names, len(names))]
            missing = [str(path) for path in paths if not path.exists()]
            command = [sys.executable, "-m", "benchmarks.calibration_trainings", "--kind", self.kind]
            command += ["--steps", str(self.num_steps), *core, *missing]
            if missing:
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def compare(self) -> dict[str, Comparison]:
        """All that is compared."""
        return {
            title: compare_runs(self.path(before), self.path(after), max_slowdown=MAX_SLOWDOWN)
            for title, (before, after) in COMPARED.items()
            if self.has((before, after))
        }


def run_pairs(folder: pathlib.Path, num_pairs: int, num_steps: int | None, mode: str, same_only: bool) -> None:
    """Run the trainings of some pairs, next to other programs or not."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(num_pairs):
        started_s = time.perf_counter()
        with background_load(seed=index) if mode == "loaded" else contextlib.nullcontext():
            Pair.planned(folder, index, num_steps).run(same_only)
        print(f"{mode}, pair {index + 1} of {num_pairs}: {time.perf_counter() - started_s:.0f} s", flush=True)


def complete_pairs(folder: pathlib.Path) -> Iterator[Pair]:
    """The pairs in a folder of which both trainings of one program are there."""
    for path in sorted(folder.glob("[0-9]*-*-*-first")):
        index, kind, num_steps, _ = path.name.split("-")
        pair = Pair(folder, int(index), kind, int(num_steps))
        if pair.has(COMPARED["one program"]):
            yield pair


@dataclass(frozen=True)
class Judged:
    """A pair and what is said of it."""

    pair: Pair
    comparisons: dict[str, Comparison]

    def verdict(self, title: str) -> str:
        """The word for one of its comparisons."""
        return self.comparisons[title].step_time.verdict


def judge(folder: pathlib.Path) -> list[Judged]:
    """Compare the trainings of all complete pairs in a folder."""
    return [Judged(pair, pair.compare()) for pair in complete_pairs(folder)]


def report(judged: list[Judged], mode: str, show: bool) -> None:
    """Print what came of it, in all and by program."""
    if not judged:
        print(f"{mode}: no complete pair")
        return
    if show:
        for one in judged:
            figures_ = "   ".join(f"{title}: {figures(found)}" for title, found in one.comparisons.items())
            print(f"  {one.pair.index:3d} {one.pair.kind:6} {one.pair.num_steps:4d}   {figures_}")
    print(f"{mode}: {len(judged)} pairs")
    for title in COMPARED:
        words = Counter(one.verdict(title) for one in judged if title in one.comparisons)
        if words:
            print(f"  {title:12} {', '.join(f'{word} {number}' for word, number in sorted(words.items()))}")
    same = [one.comparisons["one program"] for one in judged]
    print(f"  wrong words about one program: {rate([one.step_time.verdict in ('slower', 'faster') for one in same])}")
    print(f"  alarms about one program at --max-slowdown {MAX_SLOWDOWN}: {rate([one.is_regression for one in same])}")
    with_interval = [one for one in same if one.step_time.low is not None]
    print(f"  intervals of one program that hold 0 %: {rate([holds_zero(one) for one in with_interval])}")
    for kind in dict.fromkeys(one.pair.kind for one in judged):
        own = [one for one in judged if one.pair.kind == kind]
        found = [
            f"{title} found {rate([one.verdict(title) == 'slower' for one in own if title in one.comparisons])}"
            for title in list(COMPARED)[1:]
            if any(title in one.comparisons for one in own)
        ]
        same = [one.comparisons["one program"].step_time for one in own]
        changes = [one.change for one in same if one.low is not None and one.change is not None]
        if len(changes) > 1:
            found.append(f"one program differs by {100 * statistics.pstdev(changes):.1f} % (standard deviation)")
        print(f"  {kind:7} {', '.join(found)}")


def figures(comparison: Comparison) -> str:
    time_ = comparison.step_time
    if time_.change is None or time_.low is None or time_.high is None:
        return time_.verdict
    return f"{time_.verdict} {100 * time_.change:+.1f} % ({100 * time_.low:+.1f} to {100 * time_.high:+.1f})"


def holds_zero(comparison: Comparison) -> bool:
    low, high = comparison.step_time.low, comparison.step_time.high
    return low is not None and high is not None and low <= 0 <= high


def rate(outcomes: list[bool]) -> str:
    return f"{sum(outcomes)} of {len(outcomes)}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4, help="how many pairs; each took 12 to 80 s on two busy cores")
    parser.add_argument("--mode", choices=[*MODES, "both"], default="both")
    parser.add_argument("--runs", type=pathlib.Path, help="where trainings are kept; a temporary folder if left out")
    parser.add_argument("--steps", type=int, help="steps of each training, instead of some hundred to some thousand")
    parser.add_argument("--same-only", action="store_true", help="train nothing with more work")
    parser.add_argument("--show", action="store_true", help="print each pair")
    parser.add_argument("--judge-only", action="store_true", help="train nothing, judge what is there")
    options = parser.parse_args(arguments or [])
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.runs or pathlib.Path(temporary)
        for mode in MODES if options.mode == "both" else (options.mode,):
            if not options.judge_only:
                run_pairs(folder / mode, options.pairs, options.steps, mode, options.same_only)
            report(judge(folder / mode), mode, options.show)


def truth_rows(num_pairs: int = 2, num_steps: int = 600) -> Iterator[TruthRow]:
    """What is found between two trainings of one program, which is nothing; where it cannot tell, it says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        for index in range(num_pairs):
            pair = Pair.planned(pathlib.Path(folder), index, num_steps)
            pair.run()
            time_ = pair.compare()["one program"].step_time
            can_tell = time_.low is not None and time_.high is not None and time_.verdict != "cannot tell"
            interval = (time_.low, time_.high) if can_tell else (-math.inf, math.inf)  # then it claims nothing
            what = f"change between two of the same, {pair.kind}"
            yield TruthRow(what, 0.0, time_.change or 0.0, MAX_CHANGE, is_relative=False, interval=interval)


if __name__ == "__main__":
    main(sys.argv[1:])
