"""Some rows of metrics: as a matrix where nearly all rows have all metrics, as single values where few do.

The number of cells of a matrix is that of its rows times that of its metrics, so that a few hundred kilobytes of rows
that each bring a new metric would take gigabytes. Single values take memory by how many were logged.
"""

import struct

import numpy as np

_MISSING_BITS = 0x7FF8000000000001
MISSING: float = struct.unpack("<d", struct.pack("<Q", _MISSING_BITS))[0]
"""What stands for a value that a row does not have: a NaN, and not the one that stands for a NaN that was logged."""


def is_given(values: np.ndarray) -> np.ndarray:
    """Which values are those of a row, and not `MISSING`."""
    return values.view(np.int64) != _MISSING_BITS


class DenseBlock:
    """Rows as a matrix: `index` has their steps and epochs, `values` one line per metric."""

    def __init__(self, num_names: int, num_rows: int):
        self.index = np.empty((2, num_rows), np.int64)
        self.t = np.empty(num_rows)
        self.values = np.empty((num_names, num_rows))
        self.num_rows = 0

    @property
    def num_free(self) -> int:
        """How many rows may still be added."""
        return len(self.t) - self.num_rows

    @property
    def num_values(self) -> int:
        """How many values it holds."""
        return len(self.values) * self.num_rows

    def keep(self, chosen: np.ndarray) -> None:
        """Forget all rows but the chosen."""
        rows = np.flatnonzero(chosen)
        self.index, self.t, self.values = self.index[:, rows], self.t[rows], self.values[:, rows]
        self.num_rows = len(rows)

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The values one by one: row, number of the metric, value."""
        names, rows = np.nonzero(is_given(np.ascontiguousarray(self.values[:, : self.num_rows])))
        return rows, names, self.values[names, rows]

    def fill(self, target: np.ndarray) -> None:
        """Write the values into a matrix of all metrics."""
        target[: len(self.values)] = self.values[:, : self.num_rows]
        target[len(self.values) :] = MISSING


class SparseBlock:
    """Rows as single values: of each, its row, the number of its metric, and itself."""

    def __init__(self, index: np.ndarray, t: np.ndarray, row: np.ndarray, name: np.ndarray, value: np.ndarray):
        self.index = index
        self.t = t
        self.row = row
        self.name = name
        self.value = value

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        return len(self.t)

    @property
    def num_values(self) -> int:
        """How many values it holds."""
        return len(self.value)

    def keep(self, chosen: np.ndarray) -> None:
        """Forget all rows but the chosen."""
        position = np.cumsum(chosen) - 1
        kept = chosen[self.row]
        self.row, self.name, self.value = position[self.row[kept]], self.name[kept], self.value[kept]
        self.index, self.t = self.index[:, chosen], self.t[chosen]

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The values one by one: row, number of the metric, value."""
        return self.row, self.name, self.value

    def fill(self, target: np.ndarray) -> None:
        """Write the values into a matrix of all metrics."""
        target[:] = MISSING
        target[self.name, self.row] = self.value


Block = DenseBlock | SparseBlock


class SparseBuilder:
    """Rows that are added one by one."""

    def __init__(self) -> None:
        self._index: list[tuple[int, int]] = []
        self._t: list[float] = []
        self._row: list[int] = []
        self._name: list[int] = []
        self._value: list[float] = []

    def __len__(self) -> int:
        return len(self._t)

    def add(self, step: int, epoch: int, t: float, values: dict[int, float]) -> None:
        """Append a row, its values by the number of their metric."""
        self._row += [len(self._t)] * len(values)
        self._name += values.keys()
        self._value += values.values()
        self._index.append((step, epoch))
        self._t.append(t)

    def build(self) -> SparseBlock:
        """All rows so far."""
        return SparseBlock(
            np.array(self._index, np.int64).reshape(-1, 2).T,
            np.array(self._t, float),
            np.array(self._row, np.int64),
            np.array(self._name, np.int64),
            np.array(self._value, float),
        )
