"""From lines to columns: rows of metrics decoded by types that are made for the metrics of the run.

The values of packed rows need no decoding (`packed_columns`). Any other row is decoded into a struct of its mode's
metrics, which takes half as long as into a dict, and a few hundred rows at a time, so that they stay in the processor's
cache. What does not fit (a metric that was not seen before, a damaged line) is decoded one by one, and new metrics are
learnt for the rows that follow.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, Union

import msgspec
import numpy as np

from trackside.events import EPOCH_MODE
from trackside.packed_rows import PACKED_KIND, KnownNames, packed_row_bytes
from trackside.runs.metric_blocks import MISSING
from trackside.runs.metric_store import MetricStore
from trackside.runs.packed_columns import Columns, packed_columns, packed_rows_by_mode
from trackside.text import NON_FINITE

_MAX_TYPED_METRICS, _MAX_TYPED_MODES = 1024, 64
"""Beyond these, a type would take longer to make than the rows to read, and have room for much that is not there."""
_MAX_ATTEMPTS = 8
"""So often types are tried on some lines; then the rest is decoded one by one."""
_RESERVE = 1.02
"""Rows are not all of the same length: room for a few more than expected is not used, and costs nothing."""
_MAX_EXPECTED_SHARE = 2
"""What is expected takes at most this many times the bytes that follow, whatever a file looks like."""
_get_step, _get_epoch, _get_t, _get_values = (attrgetter(name) for name in ("step", "epoch", "t", "values"))
_decode_any = msgspec.json.Decoder().decode


class MetricDecoder:
    """Decodes rows of metrics.

    Args:
        stores: Where the rows go, by mode; new modes are added.
        names: What packed rows refer to.

    Attributes:
        num_bytes_ahead: How much of the file is known to follow.
    """

    def __init__(self, stores: dict[str, MetricStore], names: KnownNames):
        self.num_bytes_ahead = 0
        self._stores = stores
        self._names = names
        self._types: _Types | None = None
        self._num_typed = 0, 0

    def add_lines(self, lines: bytes | memoryview) -> tuple[int, int]:
        """Take lines that begin like rows of metrics.

        Returns:
            How many were no rows, and how many were rows that lacked a field.
        """
        left, counts = bytes(lines), Counter()
        for _ in range(_MAX_ATTEMPTS):
            self._know_types()
            if not left or self._add_typed(left):
                break
            left = self._add_one_by_one(left, counts, until_odd=True)
        else:
            self._add_one_by_one(left, counts)
        return counts["damaged"], counts["incomplete"]

    def add_packed_lines(self, lines: bytes | memoryview) -> tuple[int, int]:
        """Take lines that begin like packed rows.

        Returns:
            As for `add_lines`.
        """
        counts = Counter()
        if not self.add_only_packed(lines):
            self._add_one_by_one(bytes(lines), counts)
        return counts["damaged"], counts["incomplete"]

    def add_only_packed(self, lines: bytes | memoryview) -> bool:
        """Take lines if all of them are packed rows that can be read; whether they are, or else none was taken."""
        try:
            by_mode = packed_rows_by_mode(lines)
            if not by_mode or EPOCH_MODE in by_mode:  # never packed by a writer of ours
                return False
            stores = {mode: self._stores.get(mode) or MetricStore() for mode in by_mode}
            columns = {mode: packed_columns(rows, self._names, stores[mode]) for mode, rows in by_mode.items()}
        except (KeyError, ValueError, OverflowError, RecursionError):  # names that are not known, a damaged line
            return False
        for mode, store in stores.items():
            self._add_to(store, columns[mode], len(lines))
        self._stores.update(stores)
        return True

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Take a row that was decoded already.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: It lacks a field, or has something else in it.
        """
        try:
            step, epoch, t = int(np.int64(row["step"])), int(np.int64(row.get("epoch") or 0)), float(row["t"])
        except OverflowError as error:
            raise ValueError(str(error)) from error
        mode, given = str(row["mode"]), row["values"].items()
        values = {name: value if type(value) is float else _number(value) for name, value in given}
        self._stores.setdefault(mode, MetricStore()).add_row(step, epoch, t, values)

    def _add_one_by_one(self, lines: bytes, counts: Counter[str], until_odd: bool = False) -> bytes:
        """Take lines one by one.

        Args:
            lines: The lines.
            counts: What takes how many were `damaged` or `incomplete`.
            until_odd: Stop behind the first line that no type would have fitted: one that is damaged, or has a metric
                that is new. After that, there may be a type for the rest.

        Returns:
            The rest.
        """
        begin = 0
        while begin < len(lines):
            end = lines.find(b"\n", begin)
            line, begin = (lines[begin:end], end + 1) if end >= 0 else (lines[begin:], len(lines))
            is_odd = bool(line) and not self._add_line(line, counts)
            if until_odd and (is_odd or self._num_known() != self._num_typed):
                break
        return lines[begin:]

    def _add_line(self, line: bytes, counts: Counter[str]) -> bool:
        """Take a line; whether it was a row."""
        try:
            row = _decode_any(line)
        except (ValueError, RecursionError):
            counts["damaged"] += 1
            return False
        try:
            for one in self._names.unpack(row) if row["kind"] == PACKED_KIND else [row]:
                self.add_row(one)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            counts["incomplete"] += 1
            return False
        return True

    def _add_typed(self, lines: bytes) -> bool:
        """Take lines that all fit the types; whether they did, or else none was taken."""
        if self._types is None:
            return False
        try:
            rows = self._types.decode_lines(lines)
            by_type: dict[type, list[Any]] = {}
            if len(kinds := set(map(type, rows))) == 1:
                by_type[kinds.pop()] = rows
            else:
                for row in rows:
                    by_type.setdefault(type(row), []).append(row)
            columns = [(self._types.mode_of[kind], _to_columns(each)) for kind, each in by_type.items()]
        except (ValueError, OverflowError, RecursionError):  # what does not fit, or is not a number
            return False
        # Rows that follow are packed, if there are many.
        num_packed_bytes = sum(len(arrays[0]) * packed_row_bytes(arrays[3].shape[1]) for _, arrays in columns)
        for mode, arrays in columns:
            self._add_to(self._stores[mode], arrays, min(len(lines), num_packed_bytes))
        return True

    def _add_to(self, store: MetricStore, columns: Columns, num_bytes: int) -> None:
        """Add rows to a store. It expects more at the rate of these, which take so many bytes with those of others."""
        num_rows, num_names = columns[3].shape
        num_expected = int(_RESERVE * num_rows * self.num_bytes_ahead / num_bytes)
        most = _MAX_EXPECTED_SHARE * self.num_bytes_ahead // (8 * max(num_names, 1))
        store.add(*columns, min(num_expected, most))

    def _num_known(self) -> tuple[int, int]:
        """How many modes and metrics are known."""
        return len(self._stores), sum(len(store.names) for store in self._stores.values())

    def _know_types(self) -> None:
        """Have types for the modes and metrics that are known."""
        if self._num_typed == (num_known := self._num_known()):
            return
        self._num_typed = num_known
        few = [(mode, store) for mode, store in self._stores.items() if len(store.names) <= _MAX_TYPED_METRICS]
        self._types = _types_for(tuple((mode, tuple(store.names)) for mode, store in few[:_MAX_TYPED_MODES]))


class _Types(NamedTuple):
    """Types of rows."""

    decode_lines: Callable[[bytes], list[Any]]
    mode_of: dict[type, str]


@lru_cache(maxsize=32)  # of a thousand runs, most have the same metrics, and types take longer than short files
def _types_for(names_by_mode: tuple[tuple[str, tuple[str, ...]], ...]) -> _Types | None:
    mode_of = {}
    for mode, names in names_by_mode:
        with contextlib.suppress(ValueError):  # a name with a quote: rows of such a mode are decoded one by one
            mode_of[_row_type(mode, names)] = mode
    if not mode_of:
        return None
    return _Types(msgspec.json.Decoder(Union[tuple(mode_of)]).decode_lines, mode_of)  # noqa: UP007


def _row_type(mode: str, names: tuple[str, ...]) -> type:
    keys = {f"value_{index}": name for index, name in enumerate(names)}
    fields = [(key, float | str | None, MISSING) for key in keys]
    values = msgspec.defstruct("Values", fields, rename=keys, forbid_unknown_fields=True, gc=False)
    row_fields = [("t", float), ("step", int), ("values", values), ("epoch", int, 0)]
    return msgspec.defstruct("Row", row_fields, tag_field="mode", tag=mode, gc=False)


def _to_columns(rows: list[Any]) -> Columns:
    """Steps, epochs, times and values. numpy reads the words for what is not finite as Python does."""
    num_rows, num_names = len(rows), len(rows[0].values.__struct_fields__)
    flat = chain.from_iterable(map(msgspec.structs.astuple, map(_get_values, rows)))
    return (
        np.fromiter(map(_get_step, rows), np.int64, num_rows),
        np.fromiter(map(_get_epoch, rows), np.int64, num_rows),
        np.fromiter(map(_get_t, rows), float, num_rows),
        np.fromiter(flat, float, num_rows * num_names).reshape(num_rows, num_names),
    )


def _number(value: Any) -> float:
    """A value as a number; NaN for what is none."""
    if isinstance(value, str):
        return NON_FINITE.get(value, np.nan)
    return float(value) if isinstance(value, int | float) else np.nan
