"""Everything that one process wrote: metrics as columns, all other rows as they are."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from trackside.runs.event_file import EPOCH_MODE, split_lines
from trackside.runs.metric_decoder import MetricDecoder
from trackside.runs.metric_store import MetricStore
from trackside.runs.row_reader import RowReader

_PIECE_BYTES = 1 << 17
"""How much is decoded at once: what comes of it stays in the cache until it is in the columns."""


class RowCollector(RowReader):
    """Keeps all rows.

    Attributes:
        rows: All rows in order, except metrics; those of an epoch of training, which facts are made of, are kept.
        metrics: The metrics by mode.
        before_legs: For each row `leg`, the last step and time that were known before its process; a time may be None.
        cut_step: The lowest step from which a leg went on; None where no leg began.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self.metrics: dict[str, MetricStore] = {}
        self.before_legs: list[tuple[int, float | None]] = []
        self.cut_step: int | None = None
        self._before_opening: tuple[int, float | None] | None = None
        self._decoder = MetricDecoder(self.metrics)

    def events(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """The rows of these kinds but metrics, in order."""
        return (row for row in self.rows if row["kind"] in kinds)

    def add_block(self, block: bytes | memoryview) -> None:
        """Take whole lines, in order: a leg drops metrics that came before it, and not those that come after."""
        lines = split_lines(block)
        begin = 0
        for other in [*np.flatnonzero(~lines.is_metrics).tolist(), len(lines.starts)]:
            if self.is_newer:
                return
            if other > begin:
                self._add_metrics(block, lines.starts[begin:other].tolist(), lines.ends[begin:other])
            if other < len(lines.starts):
                self.add_line(bytes(block[lines.starts[other] : lines.ends[other]]))
            begin = other + 1

    def take_row(self, row: dict[str, Any]) -> None:
        """Take any other row, also one of metrics that begins in another way.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: It is a row of metrics that cannot be read.
        """
        if row["kind"] == "metrics":
            self._decoder.add_row(row)
            if row["mode"] == EPOCH_MODE:
                self.rows.append(row)
            return
        if row["kind"] == "format":  # another process opens the file, and takes its time until it trains
            self._before_opening = (self.step, self.ended_at)
        elif row["kind"] == "leg":
            self._cut(int(row["step"]))
            self.before_legs.append(self._before_opening or (self.step, self.ended_at))
            self._before_opening = None
        self.rows.append(row)

    def add_later(self, later: "RowCollector") -> None:
        """Take what another has gathered from the lines that follow."""
        if self.is_newer:
            return
        if later.cut_step is not None:
            self._cut(later.cut_step)
        self.rows += later.rows
        self.before_legs += [
            (self.step, self.ended_at) if ended_at is None else (step, ended_at) for step, ended_at in later.before_legs
        ]
        for mode, store in later.metrics.items():
            self.metrics.setdefault(mode, MetricStore()).add_later(store)
        self._decoder.forget_types()
        self.num_damaged += later.num_damaged
        self.num_incomplete += later.num_incomplete
        self.version = self.version if later.version is None else later.version
        if later.started_at is not None:
            self.started_at = later.started_at if self.started_at is None else self.started_at
            self.ended_at, self.step, self.epoch = later.ended_at, later.step, later.epoch

    def _add_metrics(self, block: bytes | memoryview, starts: list[int], ends: np.ndarray) -> None:
        """Take lines of metrics that follow each other, piece by piece."""
        bounds, index = [starts[0]], 0
        while (index := bisect_left(starts, bounds[-1] + _PIECE_BYTES, index + 1)) < len(starts):
            bounds.append(starts[index])
        for begin, end in pairwise([*bounds, int(ends[-1])]):
            num_damaged, num_incomplete = self._decoder.add_lines(block[begin:end])
            self.num_damaged += num_damaged
            self.num_incomplete += num_incomplete
        for index in (0, -1) if self.started_at is None else (-1,):
            self.note_metrics(block[starts[index] : ends[index]])

    def _cut(self, step: int) -> None:
        """A leg begins."""
        self.cut_step = step if self.cut_step is None else min(self.cut_step, step)
        for store in self.metrics.values():
            store.cut(step)
