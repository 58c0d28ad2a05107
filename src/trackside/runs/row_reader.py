"""From blocks of lines to rows: what all readers of an event file have in common."""

from typing import Any

import msgspec

from trackside.events import FORMAT_VERSION
from trackside.packed_rows import PACKED_KIND
from trackside.runs.row_forms import check_row

_ODD = (AttributeError, KeyError, TypeError, ValueError, OverflowError)
"""What a row raises that lacks a field, or has something else in it."""
_MAX_STEP = 2**53
_KINDS_WITH_STEP = frozenset({"metrics", PACKED_KIND, "leg", "leg_end", "status"})


class RowReader:
    """Reads lines in order. What becomes of the rows is up to those who inherit from it.

    Attributes:
        started_at: When the first row was written, in seconds since the epoch; None without any.
        ended_at: When the last row was written; None without any.
        step: The last step that was reported.
        epoch: The last epoch that was reported.
        version: The format's version; None where none was given.
        num_damaged: Lines that were no rows: torn by a kill, or damaged.
        num_incomplete: Rows that lacked what a row has to have.
    """

    def __init__(self) -> None:
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.step = 0
        self.epoch = 0
        self.version: int | None = None
        self.num_damaged = 0
        self.num_incomplete = 0
        self._decode = msgspec.json.Decoder().decode

    @property
    def is_newer(self) -> bool:
        """Whether the file is of a format that this trackside does not read; nothing is read from there on."""
        return self.version is not None and self.version > FORMAT_VERSION

    def add_block(self, block: bytes | memoryview, num_bytes_ahead: int = 0) -> None:
        """Take whole lines.

        Args:
            block: The lines.
            num_bytes_ahead: About how much follows.
        """
        raise NotImplementedError

    def take_row(self, row: dict[str, Any]) -> None:
        """Take a row that is none of metrics, or begins in another way than those do."""
        raise NotImplementedError

    def note_metrics(self, line: bytes | memoryview) -> None:
        """Take note of how far the training is, by a row of metrics."""
        try:
            row = self._decode(line)
            t, progress = _progress_of(row)
            if progress is not None and row.get("mode") == "test":  # of a model that may be from an earlier step
                progress = max(progress, (self.step, self.epoch))
            self._note(t, progress)
        except (*_ODD, RecursionError):  # damaged: reported by what takes the row
            return

    def add_line(self, line: bytes) -> None:
        """Take a line that does not begin like a row of metrics."""
        if line.isspace():
            return
        try:
            row = self._decode(line)
        except (ValueError, RecursionError):
            row = None
        if not (isinstance(row, dict) and isinstance(row.get("kind"), str)):
            self.num_damaged += 1
            return
        try:
            check_row(row)
            if row["kind"] == "format":
                self.version = int(row["version"])
            if not self.is_newer:
                progress = _progress_of(row)  # first: a row without a time is skipped, not taken
                self.take_row(row)
                self._note(*progress)
        except _ODD:
            self.num_incomplete += 1

    def _note(self, t: float, step_and_epoch: tuple[int, int] | None) -> None:
        """Take note of how far the training is."""
        self.started_at = t if self.started_at is None else self.started_at
        self.ended_at = t
        if step_and_epoch is not None:
            self.step, self.epoch = step_and_epoch


def _progress_of(row: dict[str, Any]) -> tuple[float, tuple[int, int] | None]:
    """When a row was written, and the step and epoch that it reports, if it does."""
    if row["kind"] in _KINDS_WITH_STEP and row.get("step") is not None:
        step, epoch = int(row["step"]), int(row.get("epoch") or 0)
        if max(abs(step), abs(epoch)) >= _MAX_STEP:
            raise ValueError(f"a step of {step}, or an epoch of {epoch}")
        return float(row["t"]), (step, epoch)
    return float(row["t"]), None
