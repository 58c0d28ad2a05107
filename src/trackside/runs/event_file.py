"""One event file, read as far as it is written, and read on from there later."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

BLOCK_BYTES = 1 << 20
"""How much is read at once: enough to find its lines in bulk, little beside what is kept of it."""

_FILE_NAME = re.compile(r"events-(\d{5,})\.jsonl")


def process_index_of(path: Path) -> int | None:
    """Which process wrote a file, by its name; None for a file that is no event file."""
    match = _FILE_NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def event_files(folder: Path) -> dict[int, Path]:
    """The event files in a folder by process."""
    if not folder.is_dir():
        return {}
    found = {index: path for path in folder.iterdir() if (index := process_index_of(path)) is not None}
    return dict(sorted(found.items()))


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
        with self.path.open("rb", buffering=0) as file:
            self._inode = os.fstat(file.fileno()).st_ino
            while until is None or self.offset < until:
                # Read again from the last line's end: it costs less than to carry over what lies behind it.
                file.seek(self.offset)
                room = len(buffer) if until is None else min(len(buffer), until - self.offset)
                num_read = file.readinto(memoryview(buffer)[:room]) or 0
                end = buffer.rfind(b"\n", 0, num_read) + 1
                self.num_pending = num_read - end
                if end:
                    self.offset += end
                    yield memoryview(buffer)[:end]
                elif num_read == len(buffer):  # a line that is longer
                    buffer = bytearray(2 * len(buffer))
                else:
                    return

    def go_to(self, other: "EventFile") -> None:
        """Go on from where somebody else has read to."""
        self.offset, self.num_pending, self._inode = other.offset, other.num_pending, other._inode

    def line_end_after(self, offset: int) -> int:
        """Where the first line ends that goes on behind an offset; the end of the file if none does."""
        with self.path.open("rb") as file:
            file.seek(offset)
            file.readline()
            return file.tell()
