"""From lines to columns: rows of metrics decoded by types that are made for the metrics of the run.

A row is decoded into a struct of its mode's metrics, which takes half as long as into a dict, and a few hundred rows
at a time, so that they stay in the processor's cache. What does not fit (a metric that was not seen before, a damaged
line) is decoded one by one, and new metrics are learnt for the rows that follow.
"""

import contextlib
from collections.abc import Mapping
from itertools import chain
from operator import attrgetter
from typing import Any, Union

import msgspec
import numpy as np

from trackside.runs.metric_blocks import MISSING
from trackside.runs.metric_store import MetricStore
from trackside.text import NON_FINITE

_MAX_TYPED_METRICS, _MAX_TYPED_MODES = 1024, 64
"""Beyond these, a type would take longer to make than the rows to read, and have room for much that is not there."""
_get_step, _get_epoch, _get_t, _get_values = (attrgetter(name) for name in ("step", "epoch", "t", "values"))
_decode_any = msgspec.json.Decoder().decode


class MetricDecoder:
    """Decodes rows of metrics.

    Args:
        stores: Where the rows go, by mode; new modes are added.
    """

    def __init__(self, stores: dict[str, MetricStore]):
        self._stores = stores
        self._decoder: msgspec.json.Decoder | None = None
        self._mode_of: dict[type, str] = {}

    def add_lines(self, lines: bytes | memoryview) -> tuple[int, int]:
        """Take lines that begin like rows of metrics.

        Returns:
            How many were no rows, and how many were rows that lacked a field.
        """
        if self._decoder is None:
            self._make_decoder()
        if self._decoder is not None:
            try:
                self._add_rows(self._decoder.decode_lines(lines))
                return 0, 0
            except (ValueError, OverflowError, RecursionError):  # what does not fit, or is not a number
                pass
        num_damaged = num_incomplete = 0
        for line in bytes(lines).split(b"\n"):
            if not line:
                continue
            try:
                row = _decode_any(line)
            except (ValueError, RecursionError):
                num_damaged += 1
                continue
            try:
                self.add_row(row)
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
                num_incomplete += 1
        return num_damaged, num_incomplete

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Take a row that was decoded already.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: It lacks a field, or has something else in it.
        """
        try:
            step, epoch, t = int(np.int64(row["step"])), int(np.int64(row.get("epoch") or 0)), float(row["t"])
        except OverflowError as error:
            raise ValueError(str(error)) from error
        mode, values = str(row["mode"]), {name: _number(value) for name, value in row["values"].items()}
        is_new = mode not in self._stores
        store = self._stores.setdefault(mode, MetricStore())
        if store.add_row(step, epoch, t, values) or is_new:
            self._decoder = None

    def forget_types(self) -> None:
        """Modes or metrics were added elsewhere: the next rows may have them."""
        self._decoder = None

    def _add_rows(self, rows: list[Any]) -> None:
        by_type: dict[type, list[Any]] = {}
        if len(kinds := set(map(type, rows))) == 1:
            by_type[kinds.pop()] = rows
        else:
            for row in rows:
                by_type.setdefault(type(row), []).append(row)
        columns = [(self._mode_of[kind], *_to_columns(each)) for kind, each in by_type.items()]
        for mode, *arrays in columns:  # all or none, if one does not fit
            self._stores[mode].add(*arrays)

    def _make_decoder(self) -> None:
        """Make types for the modes and metrics that are known."""
        self._mode_of = {}
        few = [(mode, store) for mode, store in self._stores.items() if len(store.names) <= _MAX_TYPED_METRICS]
        for mode, store in few[:_MAX_TYPED_MODES]:
            with contextlib.suppress(ValueError):  # a name with a quote: rows of such a mode are decoded one by one
                self._mode_of[_row_type(mode, store.names)] = mode
        if self._mode_of:
            self._decoder = msgspec.json.Decoder(Union[tuple(self._mode_of)])  # noqa: UP007


def _row_type(mode: str, names: list[str]) -> type:
    keys = {f"value_{index}": name for index, name in enumerate(names)}
    fields = [(key, float | str | None, MISSING) for key in keys]
    values = msgspec.defstruct("Values", fields, rename=keys, forbid_unknown_fields=True, gc=False)
    row_fields = [("t", float), ("step", int), ("values", values), ("epoch", int, 0)]
    return msgspec.defstruct("Row", row_fields, tag_field="mode", tag=mode, gc=False)


def _to_columns(rows: list[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
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
