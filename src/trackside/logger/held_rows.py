"""Rows of completed steps that wait a moment, to be written together."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import LOGGING

MAX_HELD_ROWS = 32
MAX_HELD_S = 0.02
"""How long the row of a completed step may wait to be written together with others."""


class HeldRow(NamedTuple):
    """A row of a completed step that is not written yet."""

    read: Callable[[], dict[str, float]]
    """Gives the numbers by name."""
    step: int
    completed_s: float
    """When the step completed, on the logger's clock."""

    def to_log(self, epoch: int) -> tuple[dict[str, float], int, int, float]:
        """The row as `Logger.log_rows` takes it.

        Args:
            epoch: The epoch of the step.
        """
        return self.read(), self.step, epoch, self.completed_s


class HeldRows:
    """The rows that wait.

    Several at once cost a third of what they cost one by one between two steps, when each finds the caches cold.

    Args:
        write: Writes rows, in the order in which they came.
        ledger: Where the time for it is booked.
    """

    def __init__(self, write: Callable[[Sequence[HeldRow]], None], ledger: Ledger):
        self._write = write
        self._ledger = ledger
        self._rows: list[HeldRow] = []

    def hold(self, row: HeldRow) -> None:
        """Let a row wait, unless there are enough of them, or the first has waited long enough."""
        self._rows.append(row)
        if len(self._rows) >= MAX_HELD_ROWS or row.completed_s - self._rows[0].completed_s > MAX_HELD_S:
            self.write()

    def write(self) -> None:
        """Write those that wait."""
        if not self._rows:
            return
        before = self._ledger.switch(LOGGING)
        rows, self._rows = self._rows, []
        self._write(rows)
        self._ledger.switch(before)
