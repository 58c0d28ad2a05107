"""Rows of completed steps that wait a moment, to be written together."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from trackside.metric_columns import MetricColumns, NamedNumbers
from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import LOGGING

MAX_HELD_ROWS = 128
MAX_HELD_S = 0.05
"""How long the row of a completed step may wait to be written together with others."""

ReadRows = Callable[[np.ndarray], Sequence[NamedNumbers]]
"""From the packed metrics of rows, their numbers. Those with the same metrics that follow each other are together."""


class HeldRows(NamedTuple):
    """Rows of completed steps that are not written yet."""

    read: ReadRows
    """Reads them. It is the same for all rows of a training."""
    vectors: np.ndarray
    """Their packed metrics, one after the other."""
    steps: Sequence[int]
    completed_s: Sequence[float]
    """When each step completed, on the logger's clock."""


class RowQueue:
    """The rows that wait.

    Many at once cost a fraction of what they cost one by one between two steps, when each finds the caches cold.

    Args:
        write: Writes rows, in the order in which they came.
        ledger: Where the time for it is booked.
    """

    def __init__(self, write: Callable[[Sequence[HeldRows]], None], ledger: Ledger):
        self._write = write
        self._ledger = ledger
        self._held: list[HeldRows] = []
        self._num_rows = 0

    def hold(self, rows: HeldRows) -> None:
        """Let rows wait, unless there are enough of them, or the first has waited long enough."""
        self._held.append(rows)
        self._num_rows += len(rows.steps)
        if self._num_rows >= MAX_HELD_ROWS or rows.completed_s[-1] - self._held[0].completed_s[0] > MAX_HELD_S:
            self.write()

    def write(self) -> None:
        """Write those that wait."""
        if not self._held:
            return
        before = self._ledger.switch(LOGGING)
        held, self._held, self._num_rows = self._held, [], 0
        self._write(held)
        self._ledger.switch(before)


def to_columns(held: Sequence[HeldRows], epoch: int) -> Iterator[tuple[MetricColumns, list[float]]]:
    """Read rows that were held.

    Args:
        held: The rows, all of one training.
        epoch: Their epoch.

    Yields:
        Rows that have the same metrics, and when their steps completed.
    """
    vectors = held[0].vectors if len(held) == 1 else np.concatenate([rows.vectors for rows in held])
    steps = list(chain.from_iterable(rows.steps for rows in held))
    completed_s = list(chain.from_iterable(rows.completed_s for rows in held))
    at = 0
    for names, num_rows, flat in held[0].read(vectors):
        end = at + num_rows
        yield MetricColumns(names, flat, steps[at:end], [epoch] * num_rows), completed_s[at:end]
        at = end
