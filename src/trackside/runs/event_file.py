"""One event file: its blocks of whole lines, read as far as it is written and later from there on, and their lines."""

import errno
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trackside.files import open_regular

BLOCK_BYTES = 1 << 20
"""How much is read at once: enough to find its lines in bulk, little next to what is kept of it."""
MAX_LINE_BYTES = 1 << 28
"""No row is as long: what has no line end for so long is not an event file."""

_METRICS_ROW = np.frombuffer(b'{"kind":"metrics",', np.uint8)
"""What a row of metrics begins with."""
EPOCH_MODE = "train_epoch"
"""The metrics of a whole epoch of training: few rows, whose place among the others matters."""
_EPOCH_ROW = re.compile(rb'"mode":"%b"' % EPOCH_MODE.encode())
_NEWLINE, _CLOSING_BRACE = ord("\n"), ord("}")


class EventFile:
    """The bytes of an event file, each handed out once, in blocks of whole lines.

    A last line without an end is left for the next reading: it may be on its way.

    Args:
        path: The file.
        offset: Where to begin: at the beginning of a line.

    Attributes:
        path: The file.
        offset: Up to where it was read: the end of the last whole line.
        num_pending: Bytes behind that, of a line that has no end.
    """

    def __init__(self, path: Path, offset: int = 0):
        self.path = path
        self.offset = offset
        self.num_pending = 0
        self._inode: int | None = None

    def was_replaced(self) -> bool:
        """Whether there is another file now, or one that was cut."""
        try:
            found = self.path.stat()
        except OSError:  # gone: what was read of it stays
            return False
        return self._inode is not None and (found.st_ino != self._inode or found.st_size < self.offset)

    def num_unread(self) -> int:
        """How many bytes there are to read."""
        try:
            return max(self.path.stat().st_size - self.offset, 0)
        except OSError:
            return 0

    def blocks(self, until: int | None = None) -> Iterator[memoryview]:
        """What was appended since the last reading. A block is overwritten by the next.

        Args:
            until: Where to stop: at the end of a line; None for the end of the file.

        Raises:
            OSError: The file cannot be read.
        """
        buffer = bytearray(min(BLOCK_BYTES, self.num_unread() + 1))
        with open_regular(self.path) as file:
            self._inode = os.fstat(file.fileno()).st_ino
            while until is None or self.offset < until:
                # Read again from the last line's end: it costs less than carrying over what is behind it.
                file.seek(self.offset)
                room = len(buffer) if until is None else min(len(buffer), until - self.offset)
                num_read = file.readinto(memoryview(buffer)[:room]) or 0
                end = buffer.rfind(b"\n", 0, num_read) + 1
                self.num_pending = num_read - end
                if end:
                    self.offset += end
                    yield memoryview(buffer)[:end]
                elif num_read == len(buffer):  # a line that is longer
                    if len(buffer) >= MAX_LINE_BYTES:
                        raise OSError(errno.EFBIG, f"a line of more than {MAX_LINE_BYTES:,} bytes", str(self.path))
                    buffer = bytearray(2 * len(buffer))
                else:
                    return

    def go_to(self, other: "EventFile") -> None:
        """Continue from where another has read to."""
        self.offset, self.num_pending, self._inode = other.offset, other.num_pending, other._inode

    def line_end_after(self, offset: int) -> int:
        """Where the first line that continues behind an offset ends; the end of the file if none does."""
        with io.BufferedReader(open_regular(self.path)) as file:
            file.seek(offset)
            file.readline()
            return file.tell()


class Lines(NamedTuple):
    """The lines of a block that are not empty."""

    starts: np.ndarray
    ends: np.ndarray
    """Where the line's end is, which is not part of it."""
    is_metrics: np.ndarray
    """Whether it begins like a row of metrics, and is not of an epoch."""

    def num_torn_metrics(self, block: bytes | memoryview) -> int:
        """How many rows of metrics do not end like a row."""
        last = np.frombuffer(block, np.uint8)[self.ends[self.is_metrics] - 1]
        return int(np.count_nonzero(last != _CLOSING_BRACE))


def split_lines(block: bytes | memoryview) -> Lines:
    """Find the lines of a block.

    Args:
        block: Whole lines.
    """
    buffer = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(buffer == _NEWLINE)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    has_text = ends > starts
    starts, ends = starts[has_text], ends[has_text]
    is_metrics = ends - starts > len(_METRICS_ROW)
    beginnings = buffer[starts[is_metrics, None] + np.arange(len(_METRICS_ROW))]
    is_metrics[is_metrics] = (beginnings == _METRICS_ROW).all(axis=1)
    of_epochs = [match.start() for match in _EPOCH_ROW.finditer(block)]
    is_metrics[np.searchsorted(starts, of_epochs, side="right") - 1] = False
    return Lines(starts, ends, is_metrics)
