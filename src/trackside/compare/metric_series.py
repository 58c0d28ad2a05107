"""A metric of one run as a series, which can be asked for its value at a step, at a time, and at its best."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from trackside.compare.sides import Side
from trackside.monitor import Mode, Monitor
from trackside.runs.metric_curves import Curve


@dataclass(frozen=True)
class MetricValue:
    """A value of a metric in one run."""

    value: float | None
    """None where it was not finite."""
    step: int
    """The step that it belongs to; for a mean, the last of its steps."""
    time_s: float
    """When it was logged, in seconds since the start of the run, not counting pauses between legs."""


@dataclass(frozen=True)
class MetricSeries:
    """The values of a metric in one run: arrays of equal length, with at least one value."""

    steps: np.ndarray
    times_s: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, side: Side, curve: Curve) -> Self:
        """The values that a run logged.

        Args:
            side: The run.
            curve: Which of its metrics.
        """
        table = side.metrics[curve.mode]
        kept = table.present(curve.name)
        times_s = np.maximum.accumulate(side.axes.elapsed_s(table.t[kept]))
        return cls(table.step[kept], times_s, table[curve.name][kept])

    @property
    def steps_per_row(self) -> int:
        """How many steps are between two values, in the median."""
        return max(int(np.median(np.diff(self.steps, prepend=0))), 1)

    def averaged(self, num_steps: int) -> Self:
        """The means over the last steps up to each row, of means that each cover the steps since the row before.

        Args:
            num_steps: Over how many steps. Rows of as many or more stay as they are.
        """
        first = np.searchsorted(self.steps, self.steps - num_steps, side="right")
        first = np.minimum(first, np.arange(len(self.steps)))
        with np.errstate(over="ignore", invalid="ignore"):  # sums of the largest numbers that there are
            return replace(self, values=self._means_since(first))

    def _means_since(self, first: np.ndarray) -> np.ndarray:
        """For each row, the mean from another row on; NaN where a value between them is not finite."""
        weights = np.diff(self.steps, prepend=0).astype(float)
        is_finite = np.isfinite(self.values)
        sums = _running_sums(np.where(is_finite, self.values, 0.0) * weights)
        totals, num_bad = _running_sums(weights), _running_sums(~is_finite)
        ends = np.arange(1, len(self.steps) + 1)
        means = (sums[ends] - sums[first]) / np.maximum(totals[ends] - totals[first], 1e-300)
        # A difference of sums loses digits: a row that stands alone keeps its value.
        means = np.where(first == ends - 1, self.values, means)
        return np.where(num_bad[ends] > num_bad[first], np.nan, means)

    def at(self, index: int) -> MetricValue:
        """One of the values."""
        value = float(self.values[index])
        return MetricValue(value if np.isfinite(value) else None, int(self.steps[index]), float(self.times_s[index]))

    def last(self) -> MetricValue:
        """The last value."""
        return self.at(len(self.steps) - 1)

    def best(self, direction: Mode) -> MetricValue | None:
        """The first of the best values; None if none is finite."""
        ranks = Monitor("metric", direction).rank_all(self.values)
        return self.at(int(np.argmin(ranks))) if np.isfinite(ranks).any() else None

    def first_as_good(self, value: float, direction: Mode) -> MetricValue | None:
        """The first value that is at least as good; None if none is."""
        monitor = Monitor("metric", direction)
        found = np.flatnonzero(monitor.rank_all(self.values) <= monitor.rank(value))
        return self.at(int(found[0])) if len(found) else None

    def by_step(self, step: float) -> MetricValue | None:
        """The last value up to a step; None if there was none yet."""
        index = int(np.searchsorted(self.steps, step, side="right")) - 1
        return self.at(index) if index >= 0 else None

    def by_time(self, time_s: float) -> MetricValue | None:
        """The last value up to a time since the start; None if there was none yet."""
        index = int(np.searchsorted(self.times_s, time_s, side="right")) - 1
        return self.at(index) if index >= 0 else None


def _running_sums(values: np.ndarray) -> np.ndarray:
    """The sum of the values before each index, and of all of them."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=float)])
