"""The log rows of training steps: what is written when, and which steps' metrics it holds."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trackside.logger import Logger
from trackside.metrics import MetricLayout
from trackside.metrics.row import MetricTotals, RowReader
from trackside.profiling.ledger import LOGGING, Ledger
from trackside.trainer.call_record import CallRecord
from trackside.trainer.goal import Position

# How long the log row of a completed step may wait for others to be written with.
MAX_UNWRITTEN_ROWS = 16
MAX_ROW_DELAY_S = 0.02


@dataclass
class StepRows:
    """Writes the rows of completed steps, and keeps the totals of the epoch."""

    position: Position
    layout: MetricLayout
    logger: Logger
    ledger: Ledger
    _unwritten: list[CallRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._read_row = RowReader(self.layout)
        self.logger.write_held_back = self.write

    def last_step(self, report: np.ndarray) -> dict[str, float]:
        """The metrics of the last step alone."""
        return self._read_row.last_step(report)

    def add(self, record: CallRecord) -> None:
        """A step that is logged has completed; its row is written now, or with others in a moment."""
        record.batch = None
        self._unwritten.append(record)
        is_late = record.completed_s - self._unwritten[0].completed_s > MAX_ROW_DELAY_S
        if is_late or len(self._unwritten) >= MAX_UNWRITTEN_ROWS:
            self.write()

    def write(self) -> None:
        """Write the rows of completed steps.

        Several at once cost a third of what they cost one by one between two steps, when each finds the caches cold.
        """
        if not self._unwritten:
            return
        before = self.ledger.switch(LOGGING)
        records, self._unwritten = self._unwritten, []
        for record in records:
            report = np.asarray(record.report)
            self.epoch_totals().add(report)
            self._log(record.last_step, record.completed_s, report)
        self.ledger.switch(before)

    def close(self) -> None:
        """Hold no rows back any more."""
        self.logger.write_held_back = None

    def settle(self, fresh_vector: Any) -> None:
        """Take the metrics since the last row to the host, so that the totals are complete."""
        position = self.position
        if position.vector is fresh_vector:
            return
        vector = np.asarray(position.vector)
        self.epoch_totals().add(vector)
        if position.interval is None:
            position.interval = MetricTotals(self.layout)
        position.interval.add(vector)
        position.vector = fresh_vector

    def epoch_totals(self) -> MetricTotals:
        """The metrics of the epoch so far."""
        if self.position.epoch_totals is None:
            self.position.epoch_totals = MetricTotals(self.layout)
        return self.position.epoch_totals

    def _log(self, step: int, now_s: float, vector: np.ndarray) -> None:
        """Log the steps since the last row: what was settled before, and a vector on top."""
        settled, self.position.interval = self.position.interval, None
        if settled is not None:
            settled.add(vector)
        row = self._read_row(vector) if settled is None else settled.compute()
        self.logger.log_row(row, step, now_s)
