"""Frequent rows of metrics in few bytes: their names are written once, and their values as numbers, not as digits.

Of a long event file nearly everything is metrics, and of such a row two thirds are names that the row before had, too.
So after `NUM_READABLE_ROWS` rows with the same metrics, the file gets a row with their names,

    {"kind":"metric_names","t":...,"id":"4be7...","names":["loss_mean",...],"integers":["epoch"]}

and each row after that refers to it:

    {"kind":"packed_metrics","t":...,"step":...,"epoch":...,"mode":"train","names":"4be7...","data":"..."}

`data` is base64 of the values as little-endian float64, in the order of the names. Rows of one epoch that are written
together, with steps that are equally far apart, share a line: `"num_rows":64,"every":1`, `step` being the last, and
`data` the rows one after the other. A row takes a third of the bytes and of the time to read, or less, and less time to
write. Rows that are few, which people look at, stay as they are.

An id is a digest of what it stands for, so that it never stands for something else. The names are repeated every
`NAMES_EVERY_BYTES`: a reader may begin in the middle, and damage to them costs few rows.
"""

import binascii
import hashlib
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from operator import index
from typing import Any

import msgspec

NUM_READABLE_ROWS = 256
"""So many rows with the same metrics are written with their names and digits."""
NAMES_EVERY_BYTES = 2 << 20
"""Names are never further in front of the rows that need them."""
NAMES_KIND, PACKED_KIND = "metric_names", "packed_metrics"
MAX_BLOCK_ROWS = 256
"""Damage to a line costs no more rows."""
_LINE_BYTES = 120
"""How long a line is without its values."""
_MAX_LAYOUTS = 64
"""More are not kept by a writer: rows that each have other metrics are not packed."""


class NamesRow(msgspec.Struct, tag_field="kind", tag=NAMES_KIND):
    """The names that an id stands for."""

    t: float
    id: str
    names: tuple[str, ...]
    integers: tuple[str, ...] = ()
    """Those whose values are integers, and are read back as such."""


class PackedRow(msgspec.Struct, tag_field="kind", tag=PACKED_KIND, gc=False, omit_defaults=True):
    """A row of metrics whose names are elsewhere, or several of them."""

    t: float
    step: int
    """Of the last row."""
    epoch: int
    mode: str
    names: str
    data: bytes
    num_rows: int = 1
    every: int = 1
    """How many steps the rows are apart."""


def packed_row_bytes(num_names: int) -> int:
    """About how long a line of one packed row is."""
    return _LINE_BYTES + 4 * math.ceil(8 * num_names / 3)


class Layout:
    """What rows with the same metrics have in common.

    Args:
        values: The values of such a row by metric.

    Attributes:
        names: The metrics, in the order of their values.
        integers: Those whose values are integers.
        id: What the rows call them.
        num_rows: How many rows there were.
        names_due_at: How many bytes the file must have for the names to be written again; 0 if they never were.

    Raises:
        TypeError, ValueError: There is a name that JSON cannot hold.
    """

    def __init__(self, values: Mapping[str, Any]):
        self.names = tuple(values)
        self.integers = tuple(name for name, value in values.items() if type(value) is int)
        if not all(isinstance(name, str) for name in self.names):
            raise TypeError("a name that is not text")
        self.id = hashlib.blake2b(msgspec.json.encode((self.names, self.integers)), digest_size=6).hexdigest()
        self.num_rows = 0
        self.names_due_at = 0
        self.pack = struct.Struct(f"<{len(self.names)}d").pack


class Block:
    """Rows that share a line.

    Args:
        layout: Their metrics.
        step: The step of the last.
        epoch: Their epoch.
        flat: Their values, row by row.
        every: How many steps they are apart.
    """

    __slots__ = ("_every", "_flat", "epoch", "layout", "num_rows", "step")

    def __init__(self, layout: Layout, step: int, epoch: int, flat: list[Any], every: int = 0):
        self.layout = layout
        self.step = step
        self.epoch = epoch
        self.num_rows = len(flat) // len(layout.names)
        self._every = every
        self._flat = flat

    def takes(self, values: Mapping[str, Any], step: int, epoch: int) -> bool:
        """Add a row; whether it fits, or else it is not added."""
        every = step - self.step
        if every < 1 or (self.num_rows > 1 and every != self._every) or self.num_rows >= MAX_BLOCK_ROWS:
            return False
        if epoch != self.epoch or tuple(values) != self.layout.names:
            return False
        self._every = every
        self._flat += values.values()
        self.step = step
        self.num_rows += 1
        return True

    def to_row(self, t: float, mode: str) -> PackedRow:
        """The line to write.

        Raises:
            struct.error, OverflowError: A value is no number.
        """
        data = struct.pack(f"<{len(self._flat)}d", *self._flat)
        return PackedRow(t, self.step, self.epoch, mode, self.layout.id, data, self.num_rows, self._every or 1)

    def rows(self) -> Iterator[tuple[dict[str, Any], int, int]]:
        """The rows again: their values by metric, their step and their epoch."""
        names, first = self.layout.names, self.step - self._every * (self.num_rows - 1)
        for place in range(self.num_rows):
            values = self._flat[place * len(names) : (place + 1) * len(names)]
            yield dict(zip(names, values, strict=True)), first + place * self._every, self.epoch


class Packer:
    """Knows which rows of a writer are frequent."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[str, ...], Layout | None] = {}

    def layout_of(self, values: Mapping[str, Any], num_rows: int = 1) -> Layout | None:
        """What a row can refer to; None for one that is to be written with its names.

        Args:
            values: The row's values by metric.
            num_rows: How many such rows there are, to be counted.
        """
        names = tuple(values)
        try:
            layout = self._layouts[names]
        except KeyError:
            layout = self._new_layout(names, values)
        if layout is None:
            return None
        layout.num_rows += num_rows
        return layout if layout.num_rows > NUM_READABLE_ROWS else None

    def _new_layout(self, names: tuple[str, ...], values: Mapping[str, Any]) -> Layout | None:
        if len(self._layouts) >= _MAX_LAYOUTS or not names:
            return None
        try:
            layout = Layout(values)
        except (TypeError, ValueError):  # text that is not Unicode
            layout = None
        self._layouts[names] = layout
        return layout


class KnownNames:
    """The names in a file, as a reader comes across them."""

    def __init__(self) -> None:
        self._rows: dict[str, NamesRow] = {}

    def learn(self, row: Mapping[str, Any]) -> None:
        """Take a row of names.

        Args:
            row: The row, of `NAMES_KIND`.

        Raises:
            ValueError: It is not one.
        """
        found = msgspec.convert(row, NamesRow)
        self._rows[found.id] = found

    def names(self, names_id: str) -> Sequence[str]:
        """What an id stands for.

        Raises:
            KeyError: That was not in the file, or was damaged.
        """
        return self._rows[names_id].names

    def unpack(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The rows as they would have been written with their names.

        Args:
            row: A row of `PACKED_KIND`, as JSON has it.

        Raises:
            KeyError, TypeError, ValueError: It lacks a field, has something else in it, or its names are not known.
        """
        known, num_rows, every = self._rows[row["names"]], index(row.get("num_rows", 1)), index(row.get("every", 1))
        data, size = binascii.a2b_base64(row["data"]), 8 * len(known.names)
        if num_rows < 1 or len(data) != num_rows * size:
            raise ValueError(f"data: expected {len(known.names)} values for each of {num_rows} rows")
        numbers = struct.iter_unpack(f"<{len(known.names)}d", data)
        first = row["step"] - every * (num_rows - 1)
        return [
            {
                "kind": "metrics",
                "t": row["t"],
                "step": first + place * every,
                "epoch": row.get("epoch", 0),
                "mode": row["mode"],
                "values": _named(known, values),
            }
            for place, values in enumerate(numbers)
        ]


def _named(known: NamesRow, numbers: Sequence[float]) -> dict[str, Any]:
    values: dict[str, Any] = dict(zip(known.names, numbers, strict=True))
    for name in known.integers:
        if values[name].is_integer():
            values[name] = int(values[name])
    return values
