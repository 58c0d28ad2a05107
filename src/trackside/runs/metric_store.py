"""The metrics of one mode as they are read: columns that grow, and become one curve."""

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from trackside.runs.metric_table import MetricTable

_MISSING_BITS = 0x7FF8000000000001
MISSING: float = struct.unpack("<d", struct.pack("<Q", _MISSING_BITS))[0]
"""What stands for a value that a row does not have: a NaN, and not the one that stands for a NaN that was logged."""

_BLOCK_VALUES = 1 << 19
_MAX_BLOCK_ROWS = 1 << 14
_MIN_BLOCK_ROWS = 64


class _Block:
    """Some rows: `index` has their steps and epochs, `values` one line per metric."""

    def __init__(self, num_names: int, num_rows: int):
        self.index = np.empty((2, num_rows), np.int64)
        self.t = np.empty(num_rows)
        self.values = np.empty((num_names, num_rows))
        self.num_rows = 0

    @property
    def num_free(self) -> int:
        return len(self.t) - self.num_rows

    def keep(self, chosen: np.ndarray) -> None:
        """Forget all rows but the chosen."""
        rows = np.flatnonzero(chosen)
        self.index, self.t, self.values = self.index[:, rows], self.t[rows], self.values[:, rows]
        self.num_rows = len(rows)


class MetricStore:
    """The rows of one mode. Their metrics may become more from row to row.

    Attributes:
        names: The metrics so far, in the order in which they first came.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._known: set[str] = set()
        self._blocks: list[_Block] = []

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return sum(block.num_rows for block in self._blocks)

    def learn(self, names: Iterable[str]) -> bool:
        """Take note of the metrics of a row.

        Returns:
            Whether there are new ones.
        """
        new = [name for name in names if name not in self._known]
        self.names += new
        self._known.update(new)
        return bool(new)

    def add(self, step: Any, epoch: Any, t: Any, values: np.ndarray) -> None:
        """Append rows.

        Args:
            step: Their steps.
            epoch: Their epochs.
            t: When they were written.
            values: One line per row, with a value for each of the first `names`.
        """
        num_rows, num_names = values.shape
        block = self._blocks[-1] if self._blocks else None
        if block is None or block.num_free < num_rows or len(block.values) != num_names:
            usual = min(max(_BLOCK_VALUES // max(num_names, 1), _MIN_BLOCK_ROWS), _MAX_BLOCK_ROWS)
            block = _Block(num_names, max(usual, num_rows))
            self._blocks.append(block)
        at = slice(block.num_rows, block.num_rows + num_rows)
        block.index[0, at], block.index[1, at], block.t[at] = step, epoch, t
        block.values[:, at] = values.T
        block.num_rows += num_rows

    def cut(self, step: int) -> None:
        """A leg goes on from a step: what came after it was lost, and is trained again."""
        for block in self._blocks:
            kept = block.index[0, : block.num_rows] <= step
            if not kept.all():
                block.keep(kept)
        self._blocks = [block for block in self._blocks if block.num_rows]

    def table(self) -> MetricTable:
        """The rows as one curve: in the order of steps, of several with the same step the last value of each metric."""
        block = self._join()
        step = block.index[0]
        if np.any(step[1:] <= step[:-1]):
            block = _merge_equal_steps(block)
        self._blocks = [block]
        return MetricTable(block.index[0], block.index[1], block.t, dict(zip(self.names, block.values, strict=True)))

    @classmethod
    def of(cls, names: list[str], index: np.ndarray, t: np.ndarray, values: np.ndarray) -> "MetricStore":
        """A store with the rows that another gave up by `pop`."""
        store, block = cls(), _Block(0, 0)
        store.learn(names)
        block.index, block.t, block.values, block.num_rows = index, t, values, len(t)
        store._blocks = [block]
        return store

    def add_later(self, later: "MetricStore") -> None:
        """Take over all rows of another, which come after those that are here."""
        self.learn(later.names)
        if later.names != self.names:
            block = later._join()
            values = np.full((len(self.names), block.num_rows), MISSING)
            values[[self.names.index(name) for name in later.names]] = block.values
            block.values = values
            later._blocks = [block]
        self._blocks += later._blocks

    def pop(self) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
        """Give up all rows: names, steps and epochs, times, and a line of values per name."""
        block = self._join()
        return self.names, block.index, block.t, block.values

    def _join(self) -> _Block:
        """All rows in one block. The others are given up one by one, so that a long run is not held twice."""
        shape = len(self.names), self.num_rows
        blocks, self._blocks = self._blocks[::-1], []
        if len(blocks) == 1 and blocks[0].values.shape == shape:
            return blocks[0]
        joined = _Block(*shape)
        while blocks:
            block = blocks.pop()
            at = slice(joined.num_rows, joined.num_rows + block.num_rows)
            joined.index[:, at], joined.t[at] = block.index[:, : block.num_rows], block.t[: block.num_rows]
            joined.values[: len(block.values), at] = block.values[:, : block.num_rows]
            joined.values[len(block.values) :, at] = MISSING
            joined.num_rows += block.num_rows
        return joined


def _merge_equal_steps(block: _Block) -> _Block:
    order = np.argsort(block.index[0], kind="stable")
    step = block.index[0, order]
    first = np.flatnonzero(np.concatenate(([True], step[1:] != step[:-1])))
    last = np.concatenate((first[1:], [len(step)])) - 1
    merged = _Block(len(block.values), len(first))
    merged.num_rows = len(first)
    merged.index, merged.t = block.index[:, order[last]], block.t[order[last]]
    position = np.arange(len(step))
    for column, source in zip(merged.values, block.values, strict=True):
        ordered = source[order]
        is_given = ordered.view(np.int64) != _MISSING_BITS
        # The last row of each step that has the value; the first one, which has none, where no row has.
        chosen = np.maximum.reduceat(np.where(is_given, position, 0), first)
        column[:] = ordered[np.maximum(chosen, first)]
    return merged
