"""The event file of one process: read as far as it is written, with what is wrong with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

from trackside.events import FORMAT_VERSION, OLDEST_COMPLETE_VERSION
from trackside.runs.event_file import EventFile
from trackside.runs.row_reader import RowReader
from trackside.text import count

Reader = TypeVar("Reader", bound=RowReader, covariant=True)


class ProcessFile(Generic[Reader]):
    """One process of a run.

    Args:
        path: Its event file.
        process_index: Which process it is.
        rows: What takes its rows.

    Attributes:
        file: Its event file.
        process_index: Which process it is.
        rows: What took its rows.
    """

    def __init__(self, path: Path, process_index: int, rows: Reader):
        self.file = EventFile(path)
        self.process_index = process_index
        self.rows = rows
        self._error = ""

    def read(self) -> bool:
        """Read what was appended since the last time.

        Returns:
            Whether there was something.
        """
        before = self.file.offset
        self._error = ""
        try:
            for block in self.file.blocks():
                self.rows.add_block(block, self.file.num_unread())
        except OSError as error:
            self._error = f"cannot be read: {error.strerror}"
        return self.file.offset != before

    def problems(self, is_written: bool) -> Iterator[str]:
        """What is wrong with the file, as sentences.

        Args:
            is_written: Whether a process may still write to it, so that its last line may be on its way.
        """
        name, rows = self.file.path.name, self.rows
        if self._error:
            yield f"{name} {self._error}"
        if num := rows.num_damaged + bool(self.file.num_pending and not is_written):
            yield f"{name}: {count(num, 'torn or damaged line')} {_was(num)} skipped"
        if num := rows.num_incomplete:
            yield f"{name}: {count(num, 'row')} that lacked fields {_was(num)} skipped"
        if rows.is_newer:
            yield (
                f"{name}: format version {rows.version} is newer than {FORMAT_VERSION}, the newest that this trackside "
                "reads; what follows was not read: use a newer trackside"
            )
        elif rows.started_at is None and not self._error:
            yield f"{name} has no rows"
        elif rows.started_at is not None and rows.version is None:
            yield f"{name}: no format version is given; it was read as version {FORMAT_VERSION}"
        elif rows.version is not None and rows.version < OLDEST_COMPLETE_VERSION:
            oldest = OLDEST_COMPLETE_VERSION
            yield f"{name}: format version {rows.version} is older than {oldest}; what it lacks was left out"


def _was(number: int) -> str:
    return "was" if number == 1 else "were"
