"""From packed rows to columns: their values are copied, not decoded."""

from operator import attrgetter

import msgspec
import numpy as np

from trackside.packed_rows import KnownNames, PackedRow
from trackside.runs.metric_blocks import MISSING, is_given
from trackside.runs.metric_store import MetricStore

_MAX_CELLS = 1 << 22
"""A matrix of more cells is made only of rows that fill it."""
_get_step, _get_epoch, _get_t, _get_mode, _get_names, _get_data = (
    attrgetter(name) for name in ("step", "epoch", "t", "mode", "names", "data")
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
    parts: list[tuple[list[int] | slice, np.ndarray, np.ndarray]] = []
    for names_id in (ids := dict.fromkeys(map(_get_names, rows))):
        own = [place for place, row in enumerate(rows) if row.names == names_id] if len(ids) > 1 else slice(None)
        names = known.names(names_id)
        data = list(map(_get_data, rows if isinstance(own, slice) else [rows[place] for place in own]))
        values = _matrix(data, len(names))
        parts.append((own, store.numbers(names), values))
    num_rows, num_names = len(rows), len(store.names)
    step, epoch = (np.fromiter(map(get, rows), np.int64, num_rows) for get in (_get_step, _get_epoch))
    t = np.fromiter(map(_get_t, rows), float, num_rows)
    if len(parts) == 1 and np.array_equal(parts[0][1], np.arange(num_names)):
        return step, epoch, t, parts[0][2]
    if num_rows * num_names > max(_MAX_CELLS, 4 * sum(values.size for _, _, values in parts)):
        raise ValueError("few of many columns have values")
    joined = np.full((num_rows, num_names), MISSING)
    for own, numbers, values in parts:
        joined[own if isinstance(own, slice) else np.array(own)[:, None], numbers] = values
    return step, epoch, t, joined


def _matrix(data: list[bytes], num_names: int) -> np.ndarray:
    """The values of rows with the same metrics."""
    if set(map(len, data)) != {8 * num_names}:
        raise ValueError("a row with more or fewer values than it has metrics")
    values = np.frombuffer(b"".join(data), "<f8").astype(float, copy=False).reshape(len(data), num_names)
    if not is_given(values).all():  # a NaN of these very bits was logged
        values = np.where(is_given(values), values, np.nan)
    return values
