"""How long steps took over a run, and which of these times say nothing of a step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trackside.runs.metric_table import MetricTable
from trackside.runs.run_legs import Leg

WARM_UP_STEPS = 10
"""Caches are cold and clocks low in the first steps of a leg."""
MIN_CLEAN_SHARE = 0.5
"""If a larger share of the steps was made while checkpoints were written, these count as well."""
_INTERRUPTING_MODES = ("val", "test")
TIMED_MODES = ("train", *_INTERRUPTING_MODES)
"""The modes whose rows step times depend on."""


@dataclass(frozen=True)
class StepTimes:
    """The times of steps, from one log row to the next: arrays of equal length."""

    step: np.ndarray
    """The last step of each interval."""
    num_steps: np.ndarray
    """How many steps it has."""
    seconds: np.ndarray
    """Seconds per step, without validation, compilation and what else the trainer leaves out."""
    t: np.ndarray
    """When the row was written, in seconds since the epoch."""
    warm_up: np.ndarray
    """Whether it is among the first steps of a leg."""
    compiling: np.ndarray
    """Whether something was compiled in it."""
    disturbed: np.ndarray
    """Whether a capture, a validation or a checkpoint fell into it, or, in a run with few, was being written."""

    @property
    def clean(self) -> np.ndarray:
        """Whether nothing of all this fell into it: what steps are compared by."""
        return ~(self.warm_up | self.compiling | self.disturbed)

    @property
    def median_s(self) -> float | None:
        """The step time of the run, which every view shows as such: the median over clean steps; None without any."""
        found = self.percentiles_s(0.5)
        return found[0] if found else None

    def percentiles_s(self, *shares: float) -> list[float]:
        """The times that the given shares of the clean steps do not exceed; empty without a clean step.

        A log row has the mean of its interval, which counts for each of its steps.
        """
        kept = self.clean & np.isfinite(self.seconds) & (self.num_steps > 0)
        if not kept.any():
            return []
        order = np.argsort(self.seconds[kept])
        covered = np.cumsum(self.num_steps[kept][order])
        places = np.searchsorted(covered, np.array(shares) * covered[-1])
        return self.seconds[kept][order][np.minimum(places, len(order) - 1)].tolist()

    def __len__(self) -> int:
        return len(self.step)


def step_times_of(
    metrics: Mapping[str, MetricTable], legs: Sequence[Leg], events: Iterable[Mapping[str, Any]]
) -> StepTimes:
    """The step times of a run.

    Args:
        metrics: The metrics by mode.
        legs: The legs of the run.
        events: The rows `compile`, `capture` and `checkpoint`.
    """
    table = metrics.get("train")
    if table is None or "step_time" not in table:
        empty, no = np.array([], np.int64), np.array([], bool)
        return StepTimes(empty, empty, np.array([], float), np.array([], float), no, no, no)
    starts = np.unique([leg.first_step for leg in legs] or [0])
    # The interval before each row begins at the row before it, or where its leg began.
    leg_start = starts[np.maximum(np.searchsorted(starts, table.step, side="left") - 1, 0)]
    first = np.maximum(np.concatenate(([0], table.step[:-1])), leg_start)
    warm_up = first < leg_start + WARM_UP_STEPS
    compiling, disturbed, saving = (np.zeros(len(table), bool) for _ in range(3))
    for row in events:
        if row["kind"] == "compile":
            compiling[_compiled(row, table)] = True
        elif row["kind"] == "capture":
            disturbed[_captured(row, table, first)] = True
        else:
            saved = _saved(row, table)
            disturbed[saved.start : saved.start + 1] = saving[saved] = True
    for mode in _INTERRUPTING_MODES:
        if mode in metrics:  # they take place when their step is over, at the beginning of the interval that follows
            index = np.searchsorted(table.step, metrics[mode].step, side="right")
            # A test of the best model is made at the end, however early the step of that model was.
            in_it = (index < len(table)) & (metrics[mode].t <= np.append(table.t, -np.inf)[index])
            disturbed[index[in_it]] = True
    # Steps next to a checkpoint that is being written may be slower. Where nearly all are, their times are the run's.
    others = ~(warm_up | compiling | disturbed)
    if np.count_nonzero(others & ~saving) >= MIN_CLEAN_SHARE * np.count_nonzero(others):
        disturbed |= saving
    has_time = np.isfinite(table["step_time"])
    return StepTimes(
        *(
            column[has_time]
            for column in (
                table.step,
                table.step - first,
                table["step_time"],
                table.t,
                warm_up,
                compiling,
                disturbed,
            )
        )
    )


def _compiled(row: Mapping[str, Any], table: MetricTable) -> slice:
    """The interval in which something was compiled."""
    if row.get("step") is None:  # before the first step
        return slice(0)
    index = int(np.searchsorted(table.step, row["step"], side="left"))
    return slice(index, index + 1)


def _captured(row: Mapping[str, Any], table: MetricTable, first: np.ndarray) -> slice:
    """The intervals from the first step of a capture to the step at which it was written."""
    begin, end = row.get("disturbed_steps") or (row.get("first_step"), row.get("last_step"))
    if begin is None or end is None:
        return slice(0)
    return slice(int(np.searchsorted(table.step, begin, side="left")), int(np.searchsorted(first, end, side="left")))


def _saved(row: Mapping[str, Any], table: MetricTable) -> slice:
    """The intervals from the step of a checkpoint to the moment when it was written: in the background, mostly."""
    if row.get("step") is None:
        return slice(0, 0)
    index = int(np.searchsorted(table.step, row["step"], side="right"))
    return slice(index, int(np.searchsorted(table.t, row["t"], side="left")) + 1)
