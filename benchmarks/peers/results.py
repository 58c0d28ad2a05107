"""The measurements of one run, as a page with tables and a plot, and what the targets say of them."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.tasks import TASKS

SHORT_STEP_S = 300e-6
LONG_STEP_S = 4e-3
_PACKAGES = ("trackside", "jax", "flax", "optax", "numpy", "keras", "lightning", "torch")


@dataclass(frozen=True)
class Result:
    """What one contestant did on one task."""

    task: str
    contestant: str
    rounds_s: tuple[float, ...]
    """Seconds per step, one figure per round."""

    @property
    def median_s(self) -> float:
        return statistics.median(self.rounds_s)

    @property
    def best_s(self) -> float:
        return min(self.rounds_s)


@dataclass(frozen=True)
class Ratio:
    """How long a step takes next to another contestant's: median and quartiles of the ratios within a round."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, one: Result, other: Result) -> "Ratio":
        ratios = sorted(a / b for a, b in zip(one.rounds_s, other.rounds_s, strict=True))
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


class Results:
    """All results, by task and contestant.

    Args:
        results: The results.
    """

    def __init__(self, results: Sequence[Result]):
        self._results = {(one.task, one.contestant): one for one in results}
        self.tasks = [name for name in TASKS if any(one.task == name for one in results)]
        self.contestants = [name for name in CONTESTANTS if any(one.contestant == name for one in results)]

    def of(self, task: str, contestant: str) -> Result:
        return self._results[task, contestant]

    def has(self, task: str, contestant: str) -> bool:
        return (task, contestant) in self._results

    def ratio(self, task: str, one: str, other: str) -> Ratio:
        return Ratio.of(self.of(task, one), self.of(task, other))

    def save(self, path: Path) -> None:
        """Write them as JSON."""
        path.write_text(json.dumps([asdict(one) for one in self._results.values()], indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Results":
        """What `save` has written."""
        rows = json.loads(path.read_text())
        return cls([Result(row["task"], row["contestant"], tuple(row["rounds_s"])) for row in rows])


@dataclass(frozen=True)
class Target:
    """A ratio that is to hold on every task for which it is meant."""

    title: str
    one: str
    other: str
    limit: float
    for_steps: str = "all"
    obstacle: str = ""
    """What stands in the way where it is missed."""

    def holds_for(self, results: Results, task: str) -> bool:
        """Whether it is meant for a task, by how long its steps take by hand."""
        if not (results.has(task, self.one) and results.has(task, self.other)):
            return False
        step_s = results.of(task, "same work").median_s
        return {"all": True, "short": step_s < SHORT_STEP_S, "long": step_s >= LONG_STEP_S}[self.for_steps]


_COMPUTES = (
    "Several steps in a call save what it takes to start a step, 20 to 50 us, and nothing of what it computes. The "
    "convolutional network computes for 0.13 ms where it takes 0.18 ms by hand, so that it cannot get to a half."
)

TARGETS = (
    Target(
        "steps_per_call=1 to a loop with the same device work",
        "K=1",
        "same work",
        1.15,
        obstacle="The loop takes some 12 us of Python for a step: clocks, the record of the call, the account, rows. "
        "Next to steps of 0.1 to 0.2 ms that keep more than one of two cores busy, the device does not hide them. To "
        "wait less changes nothing any more: with no limit to the calls in flight, it takes as long. In such steps XLA "
        "hands operations of a few microseconds from thread to thread; with `xla_cpu_scheduler_type` set to order them "
        "for memory, the step of mlp-2 takes 0.66 of the time, but those of other models up to 1.4.",
    ),
    Target(
        "defaults to a loop with the same device work, short steps",
        "trackside",
        "same work",
        0.5,
        "short",
        obstacle=_COMPUTES,
    ),
    Target(
        "defaults to a loop that computes the loss only, short steps",
        "trackside",
        "loss only",
        0.7,
        "short",
        obstacle=_COMPUTES,
    ),
    Target(
        "`Trainer` as it comes to a loop with the same device work, short steps",
        "Trainer",
        "same work",
        0.5,
        "short",
        obstacle=_COMPUTES,
    ),
    Target(
        "`Trainer` as it comes to a loop that computes the loss only, short steps",
        "Trainer",
        "loss only",
        0.7,
        "short",
        obstacle=_COMPUTES,
    ),
    Target(
        "a row every step to a row every 50",
        "every 1",
        "trackside",
        1.3,
        obstacle="Not explained. Where it was missed, on char-5ms and on an uneven machine, the best rounds were equal "
        "(6.7 ms both), and rounds of other contestants differed by half, too.",
    ),
    Target(
        "everything on to the defaults",
        "all on",
        "trackside",
        1.05,
        obstacle="On steps of 7 us, the threads of the tools and samples of the memory take 0.1 to 0.4 us for a step "
        "from the two cores that the device and the loop need. Each by itself is at 1.00 to 1.03.",
    ),
    Target("long steps to a loop with the same device work", "trackside", "same work", 1.03, "long"),
)


def to_markdown(results: Results, num_rounds: int, plot: str | None = None) -> str:
    """The page."""
    lines = ["# trackside next to other loops", "", _machine(num_rounds), ""]
    if plot:
        lines += [f"![Time per step next to a hand-written loop]({plot})", ""]
    lines += ["## Time per step", "", *_times(results), "", "## Ratios", "", _RATIOS, "", *_ratios(results), ""]
    if any(_peers_on(results, task) for task in results.tasks):
        lines += ["## What each library adds", "", _OVERHEADS, "", *_overheads(results), ""]
    lines += ["## Targets", "", *_targets(results), ""]
    if obstacles := _obstacles(results):
        lines += ["## What stands in the way", "", *obstacles, ""]
    lines += ["## What is measured", "", _EXPLAINED, "", *_who()]
    return "\n".join(lines) + "\n"


_RATIOS = (
    "To the hand-written loop with the same device work: the median of the ratios within a round, and their quartiles. "
    "Below 1 is faster than by hand."
)
_OVERHEADS = (
    "To the hand-written loop that trains the same model by the same kernels: for Keras its own model and optimizer in "
    "a jitted step, for Lightning a PyTorch loop, for trackside the loop with its device work."
)
_EXPLAINED = (
    "Each contestant has a process of its own. The hand-written loop with the same work, the defaults and everything "
    "on have three, since two processes of one contestant differ by some percent from start to end; the median of the "
    "three counts. They are measured in turn, in rounds, in an order that alternates, so that noise of the machine "
    "hits all alike. A figure is the difference between a long call, of half a second or more, and a short one, "
    "divided by the difference of their steps, so that what a call does once is not in it. Adam, float32, batches as "
    "numpy arrays (tensors for PyTorch)."
)


def _machine(num_rounds: int) -> str:
    versions = ", ".join(f"{name} {found}" for name in _PACKAGES if (found := _version(name)))
    return (
        f"Written by `make bench-peers`: {num_rounds} rounds on {os.cpu_count()} cores "
        f"({platform.machine()}, {platform.system()}), Python {platform.python_version()}, {versions}. "
        f"Load of the machine when it ended: {os.getloadavg()[1]:.1f}."
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _times(results: Results) -> list[str]:
    rows = [["", *results.tasks], ["---", *["---:"] * len(results.tasks)]]
    for name in results.contestants:
        found = (results.of(task, name) if results.has(task, name) else None for task in results.tasks)
        rows.append([name, *("" if one is None else f"{one.median_s * 1e6:,.0f} us" for one in found)])
    return _table(rows)


def _ratios(results: Results) -> list[str]:
    rows = [["", *results.tasks], ["---", *["---:"] * len(results.tasks)]]
    for name in results.contestants:
        if name != "same work":
            has = (results.has(task, name) for task in results.tasks)
            cells = (
                str(results.ratio(task, name, "same work")) if there else ""
                for task, there in zip(results.tasks, has, strict=True)
            )
            rows.append([name, *cells])
    return _table(rows)


def _targets(results: Results) -> list[str]:
    rows = [["target", "at most", "task", "measured", ""], ["---", "---:", "---", "---:", "---"]]
    for target in TARGETS:
        for task in results.tasks:
            if target.holds_for(results, task):
                ratio = results.ratio(task, target.one, target.other)
                word = "held" if ratio.median <= target.limit else f"missed by {ratio.median / target.limit - 1:.0%}"
                rows.append([target.title, f"{target.limit:g}", task, str(ratio), word])
    rows += _peer_rows(results)
    return _table(rows)


def _obstacles(results: Results) -> list[str]:
    """What is known of the targets that were missed."""
    missed = {
        target.title: target.obstacle
        for target in TARGETS
        for task in results.tasks
        if target.holds_for(results, task) and results.ratio(task, target.one, target.other).median > target.limit
    }
    titles: dict[str, list[str]] = {}
    for title, obstacle in missed.items():
        titles.setdefault(obstacle, []).append(title)
    lines = [f"- {'; '.join(alike)}: {obstacle}" for obstacle, alike in titles.items() if obstacle]
    return [*lines, *_faster_peers(results)]


def _faster_peers(results: Results) -> list[str]:
    """Where a peer takes less time: how much of that comes from its kernels."""
    lines = []
    for task in results.tasks:
        here = _peers_on(results, task)
        if not here or not results.has(task, "trackside"):
            continue
        fastest = min(here, key=lambda name: results.of(task, name).median_s)
        by_hand = CONTESTANTS[fastest].by_hand
        if results.ratio(task, "trackside", fastest).median >= 1 and results.has(task, by_hand):
            kernels = results.ratio(task, by_hand, "same work").median
            lines.append(
                f"- {fastest} takes less time on {task}: its model by hand takes {kernels:.2f} of the one that "
                "trackside trains, and that is a matter of kernels, not of the loop."
            )
    return lines


def _peers_on(results: Results, task: str) -> list[str]:
    return [name for name in results.contestants if CONTESTANTS[name].is_peer and results.has(task, name)]


def _overheads(results: Results) -> list[str]:
    """How long each library takes next to a loop without it."""
    rows = [["", *results.tasks], ["---", *["---:"] * len(results.tasks)]]
    for name in ("trackside", *(name for name in results.contestants if CONTESTANTS[name].is_peer)):
        cells = (_overhead(results, task, name) for task in results.tasks)
        rows.append([name, *("" if found is None else str(found) for found in cells)])
    return _table(rows)


def _overhead(results: Results, task: str, name: str) -> Ratio | None:
    by_hand = CONTESTANTS[name].by_hand
    if not (results.has(task, name) and results.has(task, by_hand)):
        return None
    return results.ratio(task, name, by_hand)


def _peer_rows(results: Results) -> list[list[str]]:
    """Whether the trainer adds less than every peer does, and takes less time than the fastest."""
    rows = []
    for task in results.tasks:
        own = _overhead(results, task, "trackside")
        peers = {name: found for name in _peers_on(results, task) if (found := _overhead(results, task, name))}
        if own is None or not peers:
            continue
        least = min(peers, key=lambda name: peers[name].median)
        limit = peers[least].median
        word = "held" if own.median < limit else f"missed by {own.median / limit - 1:.0%}"
        rows.append([f"defaults to a loop by hand, as {least} to its own", f"{limit:.2f}", task, str(own), word])
    return rows


def _who() -> list[str]:
    rows = [["name", "what it is"], ["---", "---"], *([one.name, one.title] for one in CONTESTANTS.values())]
    tasks = [["task", "what it is"], ["---", "---"]]
    tasks += [[task.name, f"{task.title}, batch {task.batch_size}"] for task in TASKS.values()]
    return [*_table(rows), "", *_table(tasks)]


def _table(rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in rows]
