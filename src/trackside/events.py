"""The event file: the append-only record of a run, one JSON object per line.

A row is in the file when the call that writes it returns (in the page cache: it outlives the process, however that
ends, but not a power cut). Each row carries `kind` and `t`, in seconds since the epoch. The first row of each opening
is `{"kind": "format", "version": ...}`.
"""

import errno
import io
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import EventFileError
from trackside.files import open_regular
from trackside.run_layout import event_file_name
from trackside.text import NON_FINITE

LOGGER = logging.getLogger(__name__)

FORMAT_VERSION = 1


class _MetricsRow(msgspec.Struct, tag_field="kind", tag="metrics", gc=False):
    """The row that is written most; a struct encodes faster than a dict."""

    t: float
    step: int
    epoch: int
    mode: str
    values: dict[str, Any]


class EventWriter:
    """Appends rows to an event file.

    Writing never raises because of the disk: a failure is reported once through `logging`, counted in `num_failed`, and
    the next row is tried again. Several threads may write.

    Args:
        path: The file, created when missing and continued when there.
        clock: Where `t` comes from.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Clock = SYSTEM_CLOCK):
        self.path = Path(path)
        self.num_failed = 0
        self._timestamp = clock.timestamp
        self._encode = msgspec.json.Encoder(enc_hook=_to_plain_value).encode
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._torn = _ends_torn(self._fd)
        self.write("format", version=FORMAT_VERSION)

    @property
    def closed(self) -> bool:
        """Whether `close` was called; rows written from then on are lost, and counted as failed."""
        return self._fd < 0

    def write(self, kind: str, **fields: Any) -> None:
        """Append the row `{"kind": kind, "t": now, **fields}`.

        Args:
            kind: What the row is about, such as `compile` or `status`.
            **fields: Anything JSON can hold; paths, numpy and JAX values are converted, others written as text. A NaN
                becomes null, except in the `values` of a metrics row.
        """
        if kind == "metrics" and isinstance(fields.get("values"), dict):
            fields["values"] = _spell_non_finite(fields["values"])
        row = {"kind": kind, "t": self._timestamp(), **fields}
        try:
            line = self._encode(row)
        except (TypeError, ValueError):  # keys that are no strings, text that is no Unicode
            line = self._encode(_to_plain(row))
        self._append(line)

    def write_metrics(self, values: dict[str, float], step: int, epoch: int, mode: str) -> None:
        """Append a metrics row; a NaN or an infinity in `values` survives the round trip.

        Args:
            values: The numbers by name.
            step: The training step they belong to.
            epoch: The epoch they belong to.
            mode: What they were measured in, such as `train` or `val`.
        """
        row = _MetricsRow(self._timestamp(), step, epoch, mode, values)
        line = self._encode(row)
        if b"null" in line:  # what the encoder writes for a value that is not finite
            row.values = _spell_non_finite(values)
            line = self._encode(row)
        self._append(line)

    def close(self) -> None:
        """Close the file. Calling it again does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _append(self, row: bytes) -> None:
        # One write of a whole line: with O_APPEND no other thread's row lands inside it.
        line = b"\n%b\n" % row if self._torn else row + b"\n"
        try:
            if os.write(self._fd, line) == len(line):
                if self._torn:
                    self._torn = False
                return
            # Cut short, as by a disk that is almost full. Once more tells the cause, if there still is one.
            self._torn = True
            line = b"\n%b\n" % row
            if os.write(self._fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._torn = False
        except OSError as error:
            self._count_failure(error)

    def _count_failure(self, error: OSError) -> None:
        self.num_failed += 1
        if self.num_failed == 1:
            cause = "it was closed" if self.closed else error.strerror
            LOGGER.error(
                "A row could not be written to the event file %s: %s. Rows that fail are lost and counted; "
                "later ones are tried again.",
                self.path,
                cause,
            )


class NullEventWriter:
    """The writer of a run that keeps nothing on disk: takes every row and drops it."""

    path = None
    num_failed = 0
    closed = False

    def write(self, kind: str, **fields: Any) -> None:
        """Drop the row."""

    def write_metrics(self, values: dict[str, float], step: int, epoch: int, mode: str) -> None:
        """Drop the row."""

    def close(self) -> None:
        """Nothing to close."""


class EventLog(Iterator[dict[str, Any]]):
    """The rows of one event file, in the order in which they were written; see `read_events`.

    Attributes:
        path: The file.
        num_skipped: Lines so far that were no rows: torn by a kill, or damaged.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.num_skipped = 0
        if not self.path.is_file():
            raise EventFileError(
                f"No event file at {str(self.path)!r}. A run writes {event_file_name(0)} into its log_path; "
                "check the path, and that the run was given one."
            )
        self._rows = self._read()

    def __next__(self) -> dict[str, Any]:
        return next(self._rows)

    def _read(self) -> Iterator[dict[str, Any]]:
        decode = msgspec.json.Decoder().decode
        try:
            with io.BufferedReader(open_regular(self.path)) as file:
                for line in file:
                    if line.isspace():  # what ended a torn line
                        continue
                    try:
                        row = decode(line)
                    except (ValueError, RecursionError):
                        row = None
                    if not (isinstance(row, dict) and isinstance(row.get("kind"), str)):
                        self.num_skipped += 1
                        continue
                    yield self._check(row)
        except OSError as error:
            raise EventFileError(f"The event file {str(self.path)!r} cannot be read: {error.strerror}.") from error

    def _check(self, row: dict[str, Any]) -> dict[str, Any]:
        if row["kind"] == "metrics" and isinstance(row.get("values"), dict):
            values = row["values"]
            for name, value in values.items():
                if isinstance(value, str):
                    values[name] = NON_FINITE.get(value, value)
        elif row["kind"] == "format" and isinstance(version := row.get("version"), int) and version > FORMAT_VERSION:
            raise EventFileError(
                f"The event file {str(self.path)!r} has format version {version}; this trackside reads up to "
                f"version {FORMAT_VERSION}. Read it with a newer trackside."
            )
        return row


def read_events(path: str | os.PathLike[str]) -> EventLog:
    """Iterate over the rows of one event file, also of one that is being written.

    A line torn by a kill and a damaged line are left out and counted in the result's `num_skipped`.

    Args:
        path: The event file.

    Returns:
        An iterator over the rows, `format` rows included.

    Raises:
        EventFileError: There is no such file; or, while iterating, it cannot be read or is of a newer format.
    """
    return EventLog(path)


def _ends_torn(fd: int) -> bool:
    """Whether the file's last line has no end, as after a kill or a full disk."""
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"


def _spell_non_finite(values: Mapping[str, Any]) -> dict[str, Any]:
    spelled = {}
    for name, value in values.items():
        number = math.nan if value is None else float(value)
        spelled[name] = value if math.isfinite(number) else str(number)
    return spelled


def _to_plain_value(value: Any) -> Any:
    """What to write for a value that JSON does not know: numbers of numpy and JAX, their arrays, anything as text."""
    if callable(tolist := getattr(value, "tolist", None)):
        return tolist()
    return str(value)


def _to_plain(value: Any) -> Any:
    """`value` with keys made strings and text made Unicode, for the rare row that cannot be written as it is."""
    if isinstance(value, dict):
        return {_to_plain(str(key)): _to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_plain(entry) for entry in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return value
