"""One event file: its blocks of whole lines, read as far as it is written and later from there on, and their lines."""

import errno
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trackside.events import EPOCH_MODE
from trackside.files import open_regular
from trackside.packed_rows import PACKED_KIND

BLOCK_BYTES = 1 << 17
"""How much is read at once: enough to take its lines in bulk, and what comes of it stays in the processor's cache."""
MAX_LINE_BYTES = 1 << 28
"""No row is as long: what has no line end for so long is not an event file."""

OTHER, METRICS, PACKED = range(3)
"""How a line is read: as any row, or together with the rows of metrics or packed metrics around it."""
PACKED_START = b'{"kind":"%b",' % PACKED_KIND.encode()
"""What a line of packed rows begins with."""
_BEGINNINGS = {METRICS: b'{"kind":"metrics",', PACKED: PACKED_START}
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

    def blocks(self) -> Iterator[memoryview]:
        """What was appended since the last reading. A block is overwritten by the next.

        Raises:
            OSError: The file cannot be read.
        """
        buffer = bytearray(min(BLOCK_BYTES, self.num_unread() + 1))
        with open_regular(self.path) as file:
            self._inode = os.fstat(file.fileno()).st_ino
            while True:
                # Read again from the last line's end: it costs less than carrying over what is behind it.
                file.seek(self.offset)
                num_read = file.readinto(buffer) or 0
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


class Lines(NamedTuple):
    """The lines of a block that are not empty."""

    starts: np.ndarray
    ends: np.ndarray
    """Where the line's end is, which is not part of it."""
    forms: np.ndarray
    """What it begins like: `METRICS`, `PACKED` or `OTHER`, as rows of epochs are."""

    def num_torn_metrics(self, block: bytes | memoryview) -> int:
        """How many rows of metrics do not end like a row."""
        last = np.frombuffer(block, np.uint8)[self.ends[self.forms != OTHER] - 1]
        return int(np.count_nonzero(last != _CLOSING_BRACE))

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Lines that are read together: the first, the one behind the last, and their form. Others come one by one."""
        changes = (self.forms[1:] != self.forms[:-1]) | (self.forms[1:] == OTHER)
        begins = [0, *(np.flatnonzero(changes) + 1).tolist(), len(self.forms)]
        for begin, end in pairwise(begins if len(self.forms) else []):
            yield begin, end, int(self.forms[begin])


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
    forms = np.full(len(starts), OTHER, np.uint8)
    for form, beginning in _BEGINNINGS.items():
        is_longer = np.flatnonzero(ends - starts > len(beginning))
        forms[is_longer[_begin_with(beginning, buffer, starts[is_longer])]] = form
    of_epochs = [match.start() for match in _EPOCH_ROW.finditer(block)]
    forms[np.searchsorted(starts, of_epochs, side="right") - 1] = OTHER
    return Lines(starts, ends, forms)


def _begin_with(beginning: bytes, buffer: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Which of some places in a buffer this is at. Eight bytes are compared at a time, which is five times as fast."""
    found = np.ones(len(starts), bool)
    if len(starts):
        words = np.ndarray(len(buffer) - 7, np.uint64, buffer, strides=(1,))
        for offset in (*range(0, len(beginning) - 8, 8), len(beginning) - 8):
            found &= words[starts + offset] == np.frombuffer(beginning, np.uint64, 1, offset)
    return found
