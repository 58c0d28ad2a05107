"""The metrics of one mode as they are read: rows that become one curve."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trackside.runs.metric_blocks import MISSING, Block, DenseBlock, SparseBlock, SparseBuilder, is_given
from trackside.runs.metric_table import MetricTable

_BLOCK_VALUES = 1 << 19
_MAX_BLOCK_ROWS = 1 << 14
_MIN_BLOCK_ROWS = 64
_MIN_DENSITY = 0.25
"""With a smaller share of values that are given, a matrix takes more memory than single values."""
_SMALL_CELLS = 1 << 16
"""A matrix of so few cells is used in any case."""


class MetricStore:
    """The rows of one mode. Their metrics may become more from row to row.

    Attributes:
        names: The metrics so far, in the order in which they first came.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._blocks: list[Block] = []
        self._latest = SparseBuilder()

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return sum(block.num_rows for block in self._blocks) + len(self._latest)

    def learn(self, names: Iterable[str]) -> None:
        """Take note of metrics."""
        for name in names:
            if name not in self._numbers:
                self._numbers[name] = len(self.names)
                self.names.append(name)

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """The places of metrics among `names`; those that are not known are learnt."""
        self.learn(names)
        return np.fromiter((self._numbers[name] for name in names), np.int64, len(names))

    def add_row(self, step: int, epoch: int, t: float, values: Mapping[str, float]) -> None:
        """Append a row.

        Args:
            step: Its step.
            epoch: Its epoch.
            t: When it was written.
            values: Its values by metric.
        """
        self.learn(values)
        self._latest.add(step, epoch, t, {self._numbers[name]: value for name, value in values.items()})

    def add(
        self, step: np.ndarray, epoch: np.ndarray, t: np.ndarray, values: np.ndarray, num_expected: int = 0
    ) -> None:
        """Append rows.

        Args:
            step: Their steps.
            epoch: Their epochs.
            t: When they were written.
            values: One line per row, with a value for each of the first `names`.
            num_expected: About how many rows may follow, so that there is room for them.
        """
        self._close_latest()
        if values.size > _SMALL_CELLS and np.count_nonzero(is_given(values)) < _MIN_DENSITY * values.size:
            row, name = np.nonzero(is_given(values))
            self._blocks.append(SparseBlock(np.stack([step, epoch]), t, row, name, values[row, name]))
            return
        num_rows, num_names = values.shape
        block = self._room_for(num_rows, num_names, num_expected)
        at = slice(block.num_rows, block.num_rows + len(values))
        block.index[0, at], block.index[1, at], block.t[at] = step, epoch, t
        block.values[:, at] = values.T
        block.num_rows += len(values)

    def cut(self, step: int) -> None:
        """A leg resumes from a step: what came after it was lost, and is trained again."""
        self._close_latest()
        for block in self._blocks:
            kept = block.index[0, : block.num_rows] <= step
            if not kept.all():
                block.keep(kept)
        self._blocks = [block for block in self._blocks if block.num_rows]

    def table(self) -> MetricTable:
        """The rows as one curve: in the order of steps, of several with the same step the last value of each metric."""
        self._close_latest()
        num_cells = len(self.names) * self.num_rows
        if num_cells * _MIN_DENSITY > max(sum(block.num_values for block in self._blocks), _SMALL_CELLS):
            return _sparse_table(self.names, self._blocks)
        block = self._only_block() or self._join()
        rows = slice(block.num_rows)
        if np.any(block.index[0, rows][1:] <= block.index[0, rows][:-1]):
            block = _merge_equal_steps(block)
            rows = slice(block.num_rows)
        self._blocks = [block]
        # Views: rows that are added later are written behind them.
        columns = dict(zip(self.names, block.values[:, rows], strict=True))
        return MetricTable(block.index[0, rows], block.index[1, rows], block.t[rows], columns)

    def _close_latest(self) -> None:
        """Put the rows that were added one by one behind the others."""
        if len(self._latest):
            self._blocks.append(self._latest.build())
            self._latest = SparseBuilder()

    def _room_for(self, num_rows: int, num_names: int, num_expected: int) -> DenseBlock:
        """The last block, if the rows fit into it, or a new one.

        One with room for all rows that are expected takes in those that came before, if they are fewer: then nothing
        has to be joined in the end. Room that is not used takes no memory.
        """
        last = self._blocks[-1] if self._blocks else None
        if isinstance(last, DenseBlock) and last.num_free >= num_rows and len(last.values) == num_names:
            return last
        if num_expected > (num_before := self.num_rows) and num_names == len(self.names):
            joined = self._join(num_rows + num_expected)
            self._blocks = [joined]
            return joined
        most = min(max(_BLOCK_VALUES // max(num_names, 1), _MIN_BLOCK_ROWS), _MAX_BLOCK_ROWS)
        block = DenseBlock(num_names, max(min(most, 2 * num_before), num_rows))
        self._blocks.append(block)
        return block

    def _only_block(self) -> DenseBlock | None:
        """The block that has all rows with all metrics, if there is one."""
        only = self._blocks[0] if len(self._blocks) == 1 else None
        return only if isinstance(only, DenseBlock) and len(only.values) == len(self.names) else None

    def _join(self, num_free: int = 0) -> DenseBlock:
        """All rows in one block. The others are given up one by one, so that a long run is not held twice."""
        joined = DenseBlock(len(self.names), self.num_rows + num_free)
        blocks, self._blocks = self._blocks[::-1], []
        while blocks:
            block = blocks.pop()
            at = slice(joined.num_rows, joined.num_rows + block.num_rows)
            joined.index[:, at], joined.t[at] = block.index[:, : block.num_rows], block.t[: block.num_rows]
            block.fill(joined.values[:, at])
            joined.num_rows += block.num_rows
        return joined


@dataclass(frozen=True)
class _SparseColumns(Mapping[str, np.ndarray]):
    """Columns that are made when they are asked for, of values that are sorted by metric."""

    numbers: dict[str, int]
    first: np.ndarray
    """Where the values of each metric begin, and where the last ends."""
    row: np.ndarray
    value: np.ndarray
    num_rows: int

    def __getitem__(self, name: str) -> np.ndarray:
        number = self.numbers[name]
        own = slice(self.first[number], self.first[number + 1])
        column = np.full(self.num_rows, MISSING)
        column[self.row[own]] = self.value[own]
        return column

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def _sparse_table(names: list[str], blocks: list[Block]) -> MetricTable:
    """A curve of very many metrics of which each row has few."""
    index = np.concatenate([block.index[:, : block.num_rows] for block in blocks], axis=1)
    t = np.concatenate([block.t[: block.num_rows] for block in blocks])
    begins = np.cumsum([0, *(block.num_rows for block in blocks)])
    entries = [block.entries() for block in blocks]
    row = np.concatenate([rows + begin for (rows, _, _), begin in zip(entries, begins[:-1], strict=True)])
    name, value = (np.concatenate(column) for column in list(zip(*entries, strict=True))[1:])
    step, last, place = np.unique(index[0][::-1], return_index=True, return_inverse=True)
    last, place = len(t) - 1 - last, place[::-1]  # of several rows with one step, the last tells its epoch and time
    order = np.lexsort((row, place[row], name))
    name, place, value = name[order], place[row][order], value[order]
    is_last = np.ones(len(name), bool)
    is_last[:-1] = (name[1:] != name[:-1]) | (place[1:] != place[:-1])
    name, place, value = name[is_last], place[is_last], value[is_last]
    first = np.searchsorted(name, np.arange(len(names) + 1))
    numbers = {each: number for number, each in enumerate(names)}
    return MetricTable(step, index[1, last], t[last], _SparseColumns(numbers, first, place, value, len(step)))


def _merge_equal_steps(block: DenseBlock) -> DenseBlock:
    order = np.argsort(block.index[0, : block.num_rows], kind="stable")
    step = block.index[0, order]
    first = np.flatnonzero(np.concatenate(([True], step[1:] != step[:-1])))
    last = np.concatenate((first[1:], [len(step)])) - 1
    merged = DenseBlock(len(block.values), len(first))
    merged.num_rows = len(first)
    merged.index, merged.t = block.index[:, order[last]], block.t[order[last]]
    position = np.arange(len(step))
    for column, source in zip(merged.values, block.values, strict=True):
        ordered = source[order]
        # The last row of each step that has the value; the first one, which has none, where no row has.
        chosen = np.maximum.reduceat(np.where(is_given(ordered), position, 0), first)
        column[:] = ordered[np.maximum(chosen, first)]
    return merged
