"""Everything that one process wrote: metrics as columns, all other rows as they are."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from trackside.events import EPOCH_MODE
from trackside.packed_rows import NAMES_KIND, PACKED_KIND, KnownNames
from trackside.runs.event_file import OTHER, PACKED, PACKED_START, split_lines
from trackside.runs.metric_decoder import MetricDecoder
from trackside.runs.metric_store import MetricStore
from trackside.runs.row_reader import RowReader


class RowCollector(RowReader):
    """Keeps all rows.

    Attributes:
        rows: All rows in order, except metrics; those of an epoch of training, which facts are made of, are kept.
        metrics: The metrics by mode.
        before_legs: For each row `leg`, the last step and time that were known before its process; a time may be None.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self.metrics: dict[str, MetricStore] = {}
        self.before_legs: list[tuple[int, float | None]] = []
        self._before_opening: tuple[int, float | None] | None = None
        self._names = KnownNames()
        self._decoder = MetricDecoder(self.metrics, self._names)

    def events(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """The rows of these kinds but metrics, in order."""
        return (row for row in self.rows if row["kind"] in kinds)

    def add_block(self, block: bytes | memoryview, num_bytes_ahead: int = 0) -> None:
        """Take whole lines, in order: a leg drops metrics that came before it, and not those that come after."""
        self._decoder.num_bytes_ahead = num_bytes_ahead
        if self.is_newer or self._add_only_packed(bytes(block)):
            return
        lines = split_lines(block)
        for begin, end, form in lines.runs():
            if self.is_newer:
                return
            if form == OTHER:
                self.add_line(bytes(block[lines.starts[begin] : lines.ends[begin]]))
            else:
                self._add_metrics(block, lines.starts[begin:end], lines.ends[begin:end], form == PACKED)

    def take_row(self, row: dict[str, Any]) -> None:
        """Take any other row, also one of metrics that begins in another way.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: It is a row of metrics that cannot be read.
        """
        if row["kind"] == NAMES_KIND:
            self._names.learn(row)
            return
        if row["kind"] in ("metrics", PACKED_KIND):
            for one in self._names.unpack(row) if row["kind"] == PACKED_KIND else [row]:
                self._take_metrics(one)
            return
        if row["kind"] == "format":  # another process opens the file, and takes its time until it trains
            self._before_opening = (self.step, self.ended_at)
        elif row["kind"] == "leg":
            for store in self.metrics.values():
                store.cut(int(row["step"]))
            self.before_legs.append(self._before_opening or (self.step, self.ended_at))
            self._before_opening = None
        self.rows.append(row)

    def _take_metrics(self, row: dict[str, Any]) -> None:
        self._decoder.add_row(row)
        if row["mode"] == EPOCH_MODE:
            self.rows.append(row)

    def _add_only_packed(self, block: bytes) -> bool:
        """Take a block if all of it is packed rows, as most of a long file is: then its lines need not be found."""
        if not (block.startswith(PACKED_START) and self._decoder.add_only_packed(block)):
            return False
        if self.started_at is None:
            self.note_metrics(block[: block.find(b"\n")])
        self.note_metrics(block[block.rfind(b"\n", 0, -1) + 1 :])
        return True

    def _add_metrics(self, block: bytes | memoryview, starts: np.ndarray, ends: np.ndarray, are_packed: bool) -> None:
        """Take lines of metrics that follow each other."""
        add = self._decoder.add_packed_lines if are_packed else self._decoder.add_lines
        num_damaged, num_incomplete = add(block[starts[0] : ends[-1]])
        self.num_damaged += num_damaged
        self.num_incomplete += num_incomplete
        for index in (0, -1) if self.started_at is None else (-1,):
            self.note_metrics(block[starts[index] : ends[index]])
