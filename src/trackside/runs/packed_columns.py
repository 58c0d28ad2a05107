"""From packed rows to columns: their values are copied, not decoded."""

from collections.abc import Callable
from operator import attrgetter

import msgspec
import numpy as np

from trackside.packed_rows import KnownNames, PackedRow
from trackside.runs.metric_blocks import MISSING, is_given
from trackside.runs.metric_store import MetricStore

_MAX_CELLS = 1 << 22
"""A matrix of more cells is made only of rows that fill it."""
_get_step, _get_epoch, _get_t, _get_mode, _get_names, _get_data, _get_num_rows, _get_every = (
    attrgetter(name) for name in ("step", "epoch", "t", "mode", "names", "data", "num_rows", "every")
)

Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Steps, epochs, times, and a matrix of values with one line per row."""

_decode_lines = msgspec.json.Decoder(PackedRow).decode_lines


def packed_rows_by_mode(lines: bytes | memoryview) -> dict[str, list[PackedRow]]:
    """The rows in lines, in the order of the file.

    Raises:
        ValueError: One of the lines is none.
    """
    rows = _decode_lines(lines)
    modes = dict.fromkeys(map(_get_mode, rows))  # few, mostly one: that is faster than looking at each row
    return {mode: rows if len(modes) == 1 else [row for row in rows if row.mode == mode] for mode in modes}


def packed_columns(rows: list[PackedRow], known: KnownNames, store: MetricStore) -> Columns:
    """The columns of packed rows of one mode.

    Args:
        rows: The rows, in the order of the file.
        known: What they refer to.
        store: Where they go: it learns their names, and what it knows decides about the columns of values.

    Raises:
        KeyError, OverflowError, ValueError: A row does not fit, or there would be far more columns than values.
    """
    num_rows, step, epoch, t = _places(rows)
    line_of = np.repeat(np.arange(len(rows)), num_rows)
    parts: list[tuple[np.ndarray | slice, np.ndarray, np.ndarray]] = []
    for names_id in (ids := dict.fromkeys(map(_get_names, rows))):
        is_own = np.fromiter((row.names == names_id for row in rows), bool, len(rows)) if len(ids) > 1 else None
        own = rows if is_own is None else [row for row in rows if row.names == names_id]
        names = known.names(names_id)
        values = _matrix(own, num_rows if is_own is None else num_rows[is_own], len(names))
        places = slice(None) if is_own is None else np.flatnonzero(is_own[line_of])
        parts.append((places, store.numbers(names), values))
    num_names = len(store.names)
    if len(parts) == 1 and np.array_equal(parts[0][1], np.arange(num_names)):
        return step, epoch, t, parts[0][2]
    if len(step) * num_names > max(_MAX_CELLS, 4 * sum(values.size for _, _, values in parts)):
        raise ValueError("few of many columns have values")
    joined = np.full((len(step), num_names), MISSING)
    for places, numbers, values in parts:
        joined[places if isinstance(places, slice) else places[:, None], numbers] = values
    return step, epoch, t, joined


def _places(rows: list[PackedRow]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """How many rows each line has; and the steps, epochs and times of all of them."""
    t = np.fromiter(map(_get_t, rows), float, len(rows))
    last, epoch, num_rows = (_integers(get, rows) for get in (_get_step, _get_epoch, _get_num_rows))
    if (num_rows == 1).all():
        return num_rows, last, epoch, t
    every = _integers(_get_every, rows)
    if num_rows.min() < 1 or (num_rows > [len(row.data) for row in rows]).any():
        raise ValueError("a line that has other rows than it says")
    ends = np.cumsum(num_rows)
    behind = np.repeat(ends, num_rows) - 1 - np.arange(ends[-1])
    step = np.repeat(last, num_rows) - behind * np.repeat(every, num_rows)
    return num_rows, step, np.repeat(epoch, num_rows), np.repeat(t, num_rows)


def _integers(get: Callable[[PackedRow], int], rows: list[PackedRow]) -> np.ndarray:
    """A field of each row."""
    return np.fromiter(map(get, rows), np.int64, len(rows))


def _matrix(rows: list[PackedRow], num_rows: np.ndarray, num_names: int) -> np.ndarray:
    """The values of rows with the same metrics."""
    data = list(map(_get_data, rows))
    if not np.array_equal(np.fromiter(map(len, data), np.int64, len(data)), 8 * num_names * num_rows):
        raise ValueError("a row with more or fewer values than it has metrics")
    values = np.frombuffer(b"".join(data), "<f8").astype(float, copy=False).reshape(-1, num_names)
    if values.size and np.isnan(values.min()) and not is_given(values).all():  # a NaN of these very bits was logged
        values = np.where(is_given(values), values, np.nan)
    return values
