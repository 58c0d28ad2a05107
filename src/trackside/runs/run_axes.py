"""What the curves of a run can be drawn over and compared at: steps, time and examples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from trackside.runs.run_legs import Leg

_TIME_UNITS = ((7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


@dataclass(frozen=True)
class RunAxes:
    """Time and examples of a run, by the moments and steps of its rows."""

    started_at: float
    """When the first row was written, in seconds since the epoch."""
    pauses: tuple[tuple[float, float], ...] = ()
    """From when to when no leg trained, between legs."""
    example_steps: tuple[int, ...] = ()
    """Steps at which the number of examples is known, ascending; empty where it was never counted."""
    example_counts: tuple[float, ...] = ()
    """How many examples had been trained on at each."""

    def elapsed_s(self, t: np.ndarray) -> np.ndarray:
        """Seconds since the start, not counting pauses between legs.

        Args:
            t: Moments, in seconds since the epoch.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # damage may have left any number as a time
            paused_s = sum((np.clip(t - begin, 0.0, end - begin) for begin, end in self.pauses), np.zeros(len(t)))
            elapsed_s = t - self.started_at - paused_s
        return np.where(np.isfinite(elapsed_s), np.maximum(elapsed_s, 0.0), 0.0)

    @property
    def counts_examples(self) -> bool:
        """Whether it is known how many examples a step has."""
        return bool(self.example_steps)

    def examples(self, steps: np.ndarray) -> np.ndarray:
        """How many examples had been trained on after each step.

        Between the steps at which they were counted, all steps have equally many; after the last, as many as before.

        Args:
            steps: The steps.
        """
        return _line_through(self.example_steps, self.example_counts, np.asarray(steps, float))


def axes_of(started_at: float, legs: Sequence[Leg], rows: Iterable[Mapping[str, Any]]) -> RunAxes:
    """The axes of a run.

    Args:
        started_at: `Run.started_at`.
        legs: `Run.legs`.
        rows: Its rows `leg` and `ledger`, in order.
    """
    pauses = tuple(
        (before.ended_at, after.started_at) for before, after in pairwise(legs) if after.started_at > before.ended_at
    )
    return RunAxes(started_at, pauses, *_examples_by_step(rows))


def time_unit_of(longest_s: float) -> tuple[float, str]:
    """The unit of an axis of time, as its size in seconds and its name, for times up to the longest."""
    return next((size, name) for least, size, name in _TIME_UNITS if longest_s >= least)


def _examples_by_step(rows: Iterable[Mapping[str, Any]]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Examples over all legs: each leg counts from nothing, and replaces what came after the step it resumed from."""
    steps, counts = [0], [0.0]
    before_leg = 0.0
    for row in rows:
        step = row.get("step")
        if step is None:
            continue
        if row["kind"] == "leg":
            before_leg = float(_line_through(steps, counts, np.array([float(step)]))[0])
            while len(steps) > 1 and steps[-1] >= step:
                steps.pop()
                counts.pop()
            if step > steps[-1] and before_leg > 0:
                steps.append(int(step))
                counts.append(before_leg)
        elif row.get("num_samples") and step > steps[-1]:
            steps.append(int(step))
            counts.append(before_leg + float(row["num_samples"]))
    return (tuple(steps), tuple(counts)) if len(steps) > 1 else ((), ())


def _line_through(steps: Sequence[int], counts: Sequence[float], at: np.ndarray) -> np.ndarray:
    """Straight lines between points; the last one has no end."""
    inside = np.interp(at, steps, counts)
    if len(steps) < 2:
        return inside
    slope = (counts[-1] - counts[-2]) / (steps[-1] - steps[-2])
    return np.where(at > steps[-1], counts[-1] + slope * (at - steps[-1]), inside)
