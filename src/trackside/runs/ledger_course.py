"""Where the time went over a run: the parts of the ledger from row to row."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from trackside.profiling.ledger_totals import CALLBACK, PARTS, STEP_PARTS
from trackside.runs.downsample import bucket_means, bucket_starts
from trackside.runs.metric_table import MetricTable

CALLBACKS = "callbacks"
"""All callbacks together, where a row does not say which."""
MIN_SHARE = 0.0005
"""A part below this share of all time is left out."""
_MAX_MEDIANS = 5
"""Intervals beyond this many times the median hide all others."""


@dataclass(frozen=True)
class LedgerCourse:
    """The parts over a run, one column per part."""

    parts: list[str]
    """Those of steps first, then the largest."""
    steps: np.ndarray
    """The last step of each interval."""
    values_ms: np.ndarray
    """Milliseconds per step."""
    num_steps: np.ndarray
    """How many steps each interval has."""

    @classmethod
    def of(cls, rows: MetricTable | None) -> Self | None:
        """The course; None if there are not two rows, or no time was spent.

        Args:
            rows: The metrics of mode `time`.
        """
        if rows is None or len(rows) < 2:
            return None
        columns = _columns_ms(rows)
        totals = {part: float(column.sum()) for part, column in columns.items()}
        parts = [part for part, total in totals.items() if total > MIN_SHARE * sum(totals.values())]
        if not parts:
            return None
        parts.sort(key=lambda part: (part not in STEP_PARTS, -totals[part]))
        values_ms = np.stack([columns[part] for part in parts], axis=1)
        return cls(parts, rows.step, values_ms, np.diff(rows.step, prepend=0).clip(min=1))

    @property
    def totals_ms(self) -> np.ndarray:
        """Milliseconds per step of all parts together."""
        return self.values_ms.sum(axis=1)

    @property
    def is_cut(self) -> np.ndarray:
        """Which intervals are so long, as one with a compile, that they would flatten all others."""
        return self.totals_ms > _MAX_MEDIANS * np.median(self.totals_ms)

    @property
    def first_step(self) -> int:
        """Where the first interval begins."""
        return int(self.steps[0] - self.num_steps[0])

    def shares(self, max_intervals: int) -> tuple[np.ndarray, np.ndarray]:
        """The share of each part, in percent, over intervals, and the last step of each interval.

        Args:
            max_intervals: How many at most. Longer series are averaged, so that the sizes of areas stay right.
        """
        starts = bucket_starts(len(self.steps), max_intervals)
        means = bucket_means(self.values_ms, self.num_steps.astype(float), max_intervals)
        total = means.sum(axis=1, keepdims=True)
        shares = 100 * np.divide(means, total, out=np.zeros_like(means), where=total > 0)
        return self.steps[np.append(starts[1:], len(self.steps)) - 1], shares


def _columns_ms(rows: MetricTable) -> dict[str, np.ndarray]:
    """Milliseconds per step by part; each callback by itself where the rows know it."""
    own = [name.removesuffix("_ms") for name in rows.names if name.startswith(CALLBACK) and name.endswith("_ms")]
    columns = {part: np.nan_to_num(rows[f"{part}_ms"]) for part in (*PARTS, *own) if f"{part}_ms" in rows}
    if f"{CALLBACKS}_ms" in rows:
        named = sum((columns[part] for part in own), np.zeros(len(rows)))
        columns[CALLBACKS] = (np.nan_to_num(rows[f"{CALLBACKS}_ms"]) - named).clip(min=0.0)
    return columns
