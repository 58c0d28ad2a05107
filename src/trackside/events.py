"""The event file: the append-only record of a run, one JSON object per line.

A row is in the file when the call that writes it returns (in the page cache: it survives the end of the process, but
not a power cut). Each row has a `kind` and a time `t`, in seconds since 1970. Each time the file is opened for writing,
the first row is `{"kind": "format", "version": ...}`. Rows of metrics that are frequent are packed (`packed_rows`);
`read_events` gives them as they would have been without.
"""

import errno
import io
import logging
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import EventFileError
from trackside.files import open_regular
from trackside.metric_columns import MetricColumns, MetricRow
from trackside.packed_rows import (
    MAX_BLOCK_ROWS,
    NAMES_EVERY_BYTES,
    NAMES_KIND,
    PACKED_KIND,
    Block,
    KnownNames,
    Layout,
    NamesRow,
    PackedRow,
    Packer,
)
from trackside.run_layout import event_file_name
from trackside.text import NON_FINITE

__all__ = ["EventLog", "EventWriter", "NullEventWriter", "read_events"]

LOGGER = logging.getLogger(__name__)

FORMAT_VERSION = 3
OLDEST_COMPLETE_VERSION = 1
"""Files since this version have all that is read from them; version 2 packs rows, version 3 several into a line."""
EPOCH_MODE = "train_epoch"
"""The metrics of a whole epoch of training: few rows, whose place among the others matters."""

_METRICS_START, _PACKED_START = b'{"kind":"metrics"', b'{"kind":"%b"' % PACKED_KIND.encode()
_EPOCH_FIELD = b'"mode":"%b"' % EPOCH_MODE.encode()


class _MetricsRow(msgspec.Struct, tag_field="kind", tag="metrics", gc=False):
    """The most frequent row; a struct encodes faster than a dict."""

    t: float
    step: int
    epoch: int
    mode: str
    values: dict[str, Any]


class EventSink(Protocol):
    """What takes rows, such as an `EventWriter`."""

    def write(self, kind: str, **fields: Any) -> None:
        """Append a row."""
        ...


class EventWriter:
    """Appends rows to an event file.

    Writing never raises because of the disk: a failure is logged once and counted in `num_failed`, and later rows are
    still tried. Several threads may write.

    Args:
        path: The file. It is created if it does not exist, and continued if it does.
        clock: Where `t` comes from.

    Raises:
        OSError: If the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Clock = SYSTEM_CLOCK):
        self.path = Path(path)
        self.num_failed = 0
        self._timestamp = clock.timestamp
        self._packer = Packer()
        self._num_bytes = 0
        encoder = msgspec.json.Encoder(enc_hook=_to_plain_value)
        self._encode, self._encode_lines = encoder.encode, encoder.encode_lines
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._torn = _ends_torn(self._fd)
        self.write("format", version=FORMAT_VERSION)

    @property
    def closed(self) -> bool:
        """Whether `close` was called. Rows written after that are lost, and counted as failed."""
        return self._fd < 0

    @property
    def is_deleted(self) -> bool:
        """Whether the file was deleted while it is open, so that nobody will read what is written."""
        try:
            return self._fd >= 0 and os.fstat(self._fd).st_nlink == 0
        except OSError:
            return True

    def write(self, kind: str, **fields: Any) -> None:
        """Append the row `{"kind": kind, "t": now, **fields}`.

        Args:
            kind: What the row is about, such as `compile` or `status`.
            **fields: Anything JSON can hold. Paths, numpy and JAX values are converted, others are written as text. A
                NaN becomes null, except in the `values` of a metrics row.
        """
        if kind == "metrics" and isinstance(fields.get("values"), dict):
            fields["values"] = _spell_non_finite(fields["values"])
        row = {"kind": kind, "t": self._timestamp(), **fields}
        try:
            line = self._encode(row)
        except (TypeError, ValueError):  # keys that are not strings, text that is not Unicode
            line = self._encode(_to_plain(row))
        self._append(line)

    def write_metrics(self, values: dict[str, float], step: int, epoch: int, mode: str) -> None:
        """Append a metrics row. A NaN or an infinity in `values` can be read back.

        Args:
            values: The numbers by name.
            step: The training step.
            epoch: The epoch.
            mode: What the numbers are from, such as `train` or `val`.
        """
        t = self._timestamp()
        if mode != EPOCH_MODE and (layout := self._packer.layout_of(values)) is not None:
            try:
                self._append_packed(PackedRow(t, step, epoch, mode, layout.id, layout.pack(*values.values())), layout)
                return
            except (struct.error, TypeError, ValueError, OverflowError):  # a value that is no number
                pass
        self._append(self._readable_line(_MetricsRow(t, step, epoch, mode, values)))

    def write_metrics_rows(self, rows: Iterable[MetricRow], mode: str) -> None:
        """Append several metrics rows at once, which takes a fifth of the time.

        Args:
            rows: The numbers by name, the step and the epoch of each.
            mode: As for `write_metrics`.
        """
        self._write_blocks(self._blocks(rows, mode), mode)

    def write_metrics_columns(self, columns: MetricColumns, mode: str) -> None:
        """Append several metrics rows at once.

        Args:
            columns: The rows.
            mode: As for `write_metrics`.
        """
        every, layout = columns.every, None
        if every and mode != EPOCH_MODE:
            layout = self._packer.layout_of(dict(zip(columns.names, columns.flat, strict=False)), num_rows=0)
        if layout is None:
            self.write_metrics_rows(columns.rows(), mode)
        else:
            self._write_blocks(_column_blocks(columns, layout, every), mode)

    def _write_blocks(self, blocks: Iterable[Block | MetricRow], mode: str) -> None:
        t, named = self._timestamp(), []
        lines: list[PackedRow | NamesRow | msgspec.Raw] = []
        for block in blocks:
            lines += self._block_lines(block, t, mode, named)
        if lines and self._append(self._encode_lines(lines)[:-1]):
            for layout in named:
                layout.names_due_at = self._num_bytes + NAMES_EVERY_BYTES

    def _blocks(self, rows: Iterable[MetricRow], mode: str) -> Iterator[Block | MetricRow]:
        """Rows that can share a line, together, and the others."""
        block: Block | None = None
        for row in rows:
            values, step, epoch = row
            if block is not None:
                if block.takes(values, step, epoch):
                    continue
                yield block
            layout = None if mode == EPOCH_MODE else self._packer.layout_of(values)
            block = None if layout is None else Block(layout, step, epoch, [*values.values()])
            if block is None:
                yield row
        if block is not None:
            yield block

    def _block_lines(
        self, block: Block | MetricRow, t: float, mode: str, named: list[Layout]
    ) -> list[PackedRow | NamesRow | msgspec.Raw]:
        """The lines of a block, with its names if they are due, which is noted; or that of a row that is in none."""
        if not isinstance(block, Block):
            values, step, epoch = block
            return [msgspec.Raw(self._readable_line(_MetricsRow(t, step, epoch, mode, values)))]
        try:
            line, layout = block.to_row(t, mode), block.layout
        except (struct.error, TypeError, ValueError, OverflowError):  # a value that is no number
            if block.num_rows == 1:
                return self._block_lines(next(block.rows()), t, mode, named)
            alone = (Block(block.layout, step, epoch, [*values.values()]) for values, step, epoch in block.rows())
            return [line for one in alone for line in self._block_lines(one, t, mode, named)]
        if self._num_bytes < layout.names_due_at or layout in named:
            return [line]
        named.append(layout)
        return [NamesRow(t, layout.id, layout.names, layout.integers), line]

    def _readable_line(self, row: _MetricsRow) -> bytes:
        line = self._encode(row)
        if b"null" in line:  # how the encoder writes a value that is not finite
            row.values = _spell_non_finite(row.values)
            line = self._encode(row)
        return line

    def _names_line(self, t: float, layout: Layout) -> bytes:
        return self._encode(NamesRow(t, layout.id, layout.names, layout.integers))

    def close(self) -> None:
        """Close the file. Calling it again does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _append_packed(self, row: PackedRow, layout: Layout) -> None:
        line = self._encode(row)
        if self._num_bytes < layout.names_due_at:
            self._append(line)
            return
        # In one write, and noted afterwards: a row of another thread never comes before its names.
        if self._append(b"%b\n%b" % (self._names_line(row.t, layout), line)):
            layout.names_due_at = self._num_bytes + NAMES_EVERY_BYTES

    def _append(self, row: bytes) -> bool:
        """Append a line, or lines; whether they are in the file."""
        # One write for the whole line: with O_APPEND, no other thread can write into it.
        line = b"\n%b\n" % row if self._torn else row + b"\n"
        try:
            num_missing = len(line) - os.write(self._fd, line)
            self._num_bytes += len(line)
            if num_missing <= 1:  # without its line end the row is whole all the same; the next one begins with it
                self._torn = num_missing == 1
                return True
            # Cut short, as on a disk that is almost full. The second attempt raises the cause, if it persists.
            self._torn = True
            line = b"\n%b\n" % row
            if os.write(self._fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._torn = False
            return True
        except OSError as error:
            self._count_failure(error)
            return False

    def _count_failure(self, error: OSError) -> None:
        self.num_failed += 1
        if self.num_failed == 1:
            cause = "it was closed" if self.closed else error.strerror
            LOGGER.error(
                "A row could not be written to the event file %s: %s. It is lost, and so are others that fail; "
                "they are counted, and later rows are still tried.",
                self.path,
                cause,
            )


class NullEventWriter:
    """The writer of a run that keeps nothing on disk: it drops every row."""

    path = None
    num_failed = 0
    closed = False
    is_deleted = False

    def write(self, kind: str, **fields: Any) -> None:
        """Drop the row."""

    def write_metrics(self, values: dict[str, float], step: int, epoch: int, mode: str) -> None:
        """Drop the row."""

    def write_metrics_rows(self, rows: Iterable[MetricRow], mode: str) -> None:
        """Drop the rows."""

    def write_metrics_columns(self, columns: MetricColumns, mode: str) -> None:
        """Drop the rows."""

    def close(self) -> None:
        """Nothing to close."""


class EventLog(Iterator[dict[str, Any]]):
    """The rows of one event file, in the order in which they were written; see `read_events`.

    Attributes:
        path: The file.
        num_skipped: How many lines were skipped so far, because a kill tore them or they were damaged.
    """

    def __init__(self, path: str | os.PathLike[str], skips_step_metrics: bool = False):
        self.path = Path(path)
        self.num_skipped = 0
        self._skips_step_metrics = skips_step_metrics
        self._names = KnownNames()
        if not self.path.is_file():
            raise EventFileError(
                f"there is no event file at {str(self.path)!r}. A run writes {event_file_name(0)} into its folder; "
                "check the path, and that the run was given a folder"
            )
        self._rows = self._read()

    def __next__(self) -> dict[str, Any]:
        return next(self._rows)

    def _read(self) -> Iterator[dict[str, Any]]:
        decode = msgspec.json.Decoder().decode
        try:
            with io.BufferedReader(open_regular(self.path)) as file:
                for line in file:
                    if line.isspace():  # the end of a torn line
                        continue
                    if self._skips_step_metrics and _is_step_metrics(line):
                        continue
                    try:
                        rows = self._plain(decode(line))
                    except (KeyError, TypeError, ValueError, RecursionError):
                        rows = [None]
                    for row in rows:
                        if not (isinstance(row, dict) and isinstance(row.get("kind"), str)):
                            self.num_skipped += 1
                        elif row["kind"] != NAMES_KIND:
                            yield self._check(row)
        except OSError as error:
            raise EventFileError(f"event file {str(self.path)!r}: cannot be read: {error.strerror}") from error

    def _plain(self, row: Any) -> list[Any]:
        """The row, or those that are packed into it."""
        kind = row.get("kind") if isinstance(row, dict) else None
        if kind == NAMES_KIND:
            self._names.learn(row)
        return self._names.unpack(row) if kind == PACKED_KIND else [row]

    def _check(self, row: dict[str, Any]) -> dict[str, Any]:
        if row["kind"] == "metrics" and isinstance(row.get("values"), dict):
            values = row["values"]
            for name, value in values.items():
                if isinstance(value, str):
                    values[name] = NON_FINITE.get(value, value)
        elif row["kind"] == "format" and isinstance(version := row.get("version"), int) and version > FORMAT_VERSION:
            raise EventFileError(
                f"event file {str(self.path)!r}: has format version {version}, and this trackside reads up to "
                f"version {FORMAT_VERSION}; read it with a newer trackside"
            )
        return row


def read_events(path: str | os.PathLike[str], skips_step_metrics: bool = False) -> EventLog:
    """Iterate over the rows of one event file, even while it is being written.

    Torn and damaged lines are skipped and counted in the result's `num_skipped`.

    Args:
        path: The event file.
        skips_step_metrics: Whether to leave out rows of metrics but for those of whole epochs: nearly all of a long
            file, which then takes a tenth of the time.

    Returns:
        An iterator over the rows, `format` rows included.

    Raises:
        EventFileError: If there is no such file or, while iterating, if it cannot be read or has a newer format.
    """
    return EventLog(path, skips_step_metrics)


def _is_step_metrics(line: bytes) -> bool:
    """Whether a line is a row of metrics, and none of an epoch."""
    if line.startswith(_METRICS_START):
        return _EPOCH_FIELD not in line
    return line.startswith(_PACKED_START)


def _ends_torn(fd: int) -> bool:
    """Whether the last line of the file is incomplete, as after a kill or on a full disk."""
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"


def _column_blocks(columns: MetricColumns, layout: Layout, every: int) -> Iterator[Block]:
    width, steps, epoch = len(columns.names), columns.steps, columns.epochs[-1]
    for at in range(0, len(steps), MAX_BLOCK_ROWS):
        part = steps[at : at + MAX_BLOCK_ROWS]
        yield Block(layout, part[-1], epoch, columns.flat[at * width : (at + len(part)) * width], every)


def _spell_non_finite(values: Mapping[str, Any]) -> dict[str, Any]:
    spelled = {}
    for name, value in values.items():
        number = math.nan if value is None else float(value)
        spelled[name] = value if math.isfinite(number) else str(number)
    return spelled


def _to_plain_value(value: Any) -> Any:
    """What to write for a value that JSON cannot hold: numpy and JAX values as numbers, anything else as text."""
    if callable(tolist := getattr(value, "tolist", None)):
        return tolist()
    return str(value)


def _to_plain(value: Any) -> Any:
    """`value` with string keys and valid Unicode, for the rare row that cannot be written unchanged."""
    if isinstance(value, dict):
        return {_to_plain(str(key)): _to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_plain(entry) for entry in value]
    if isinstance(value, str):
        return to_unicode(value)
    return value


def to_unicode(text: str) -> str:
    r"""Text that UTF-8 can hold: a lone surrogate, as from the name of a file, becomes its escape, such as `\udc80`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def with_unicode_names(values: Mapping[str, float]) -> dict[str, float]:
    """Numbers by names that can be written."""
    return {to_unicode(name): value for name, value in values.items()}
