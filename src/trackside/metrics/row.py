"""Packed metrics as log rows, in a few microseconds, since small steps do not take much longer.

For a row of a dozen metrics, Python's own numbers are faster than numpy, where every call costs as much as the whole
row; for many rows it is the other way round. `HostMetrics` gives the same numbers and can be merged; this reads a
vector once.
"""

import struct
from itertools import groupby
from math import sqrt
from typing import NamedTuple

import numpy as np

from trackside.metric_columns import NamedNumbers
from trackside.metrics.host import HostMetrics
from trackside.metrics.layout import NUM_HEADER_WORDS, MetricLayout

_FOLD_EVERY = 256
_MIN_AT_ONCE = 4
"""Fewer rows take less time one by one."""


class _Slots(NamedTuple):
    """The places of a metric's sum and count, and the weight of the first word of the count."""

    sum_high: int
    sum_low: int
    count_high: int
    count_low: int
    high_worth: float


class RowReader:
    """Reads packed vectors of one layout.

    Args:
        layout: The layout.
    """

    def __init__(self, layout: MetricLayout):
        self._layout = layout
        self._unpack = struct.Struct(_format(layout)).unpack
        num_all, at = len(layout.specs), layout.slices
        slots = [
            _Slots(
                at["sum"].start + index,
                at["sum"].start + num_all + index,
                at["count"].start + index,
                at["count"].start + num_all + index,
                1.0 if spec.has_float_count else 2.0**32,
            )
            for index, spec in enumerate(layout.specs)
        ]
        outputs = layout.outputs

        def chosen(mode: str, first_word: int | None = None) -> list[tuple]:
            """Name and slots of each metric with a mode, and the word that holds the value of the mode."""
            return [
                (name, *slots[index], 0 if first_word is None else first_word + at_word)
                for at_word, (name, index) in enumerate(zip(outputs[mode].names, outputs[mode].indices, strict=True))
            ]

        self._means = [entry[:-1] for entry in (*chosen("mean"), *chosen("mean_nopostfix"))]
        self._values = [
            *((name, *slots[index], NUM_HEADER_WORDS + index) for name, index in zip(*outputs["single"], strict=True)),
            *chosen("max", at["max"].start),
        ]
        self._stds = chosen("std", at["std_steps"].start)
        self._num_std = len(outputs["std"].names)

    def __call__(self, vector: np.ndarray) -> dict[str, float]:
        """The numbers to log, without metrics that had no items."""
        words = self._unpack(vector.data)
        row: dict[str, float] = {}
        for name, sum_high, sum_low, count_high, count_low, high_worth in self._means:
            count = words[count_high] * high_worth + words[count_low]
            if count > 0:
                row[name] = (words[sum_high] + words[sum_low]) / count
        for name, _, _, count_high, count_low, _, word in self._values:
            if words[count_high] or words[count_low]:
                row[name] = words[word]
        for name, _, _, count_high, count_low, _, word in self._stds:
            if words[count_high] or words[count_low]:
                row[name] = sqrt(words[word + 2 * self._num_std] / max(words[word], 1))
        return row

    def read_all(self, vectors: np.ndarray) -> list[NamedNumbers]:
        """The numbers of several rows, to the last bit those that each of them has by itself.

        Args:
            vectors: Their packed metrics, one after the other.

        Returns:
            Rows that follow each other and have the same metrics are together.
        """
        metrics = HostMetrics(self._layout, vectors) if len(vectors) >= _MIN_AT_ONCE else None
        if metrics is not None and (metrics.count > 0).all():
            names, flat = metrics.table()
            return [NamedNumbers(names, len(vectors), flat)]
        return [_together(names, list(rows)) for names, rows in groupby(map(self, vectors), key=tuple)]

    def last_step(self, vector: np.ndarray) -> dict[str, float]:
        """Value / count of the last step, by the metrics' own names."""
        words = self._unpack(vector.data)
        return dict(zip(self._layout.names, words[NUM_HEADER_WORDS:], strict=False))


def _together(names: tuple[str, ...], rows: list[dict[str, float]]) -> NamedNumbers:
    return NamedNumbers(names, len(rows), [number for row in rows for number in row.values()])


def _format(layout: MetricLayout) -> str:
    num_all, num_max, num_std = len(layout.specs), len(layout.max_indices), len(layout.std_indices)
    counts = "".join("f" if spec.has_float_count else "I" for spec in layout.specs)
    return f"={NUM_HEADER_WORDS}I{3 * num_all}f{2 * counts}{num_max}f{num_std}I{2 * num_std}f"


class MetricTotals:
    """Adds up packed vectors, such as those of an epoch's log intervals. Adding one is very cheap.

    Args:
        layout: The layout of the vectors.
        metrics: What to start with; None for nothing.
    """

    def __init__(self, layout: MetricLayout, metrics: HostMetrics | None = None):
        self._metrics = HostMetrics(layout) if metrics is None else metrics
        self._waiting: list[np.ndarray] = []
        self._num_waiting = 0

    def add(self, vector: np.ndarray) -> None:
        """Add the metrics of the next steps."""
        self.add_all(vector[None])

    def add_all(self, vectors: np.ndarray) -> None:
        """Add those of several intervals, in their order."""
        # So many at a time, however they are given: a sum of floats depends on what is added first.
        while (room := _FOLD_EVERY - self._num_waiting) <= len(vectors):
            self._waiting.append(vectors[:room])
            self._fold()
            vectors = vectors[room:]
        if len(vectors):
            self._waiting.append(vectors.copy())  # otherwise, on a CPU, it would keep the device's array alive
            self._num_waiting += len(vectors)

    def compute(self) -> dict[str, float]:
        """The numbers to log."""
        return self.metrics.compute()

    @property
    def metrics(self) -> HostMetrics:
        """The sum of everything that was added."""
        if self._waiting:
            self._fold()
        return self._metrics

    def _fold(self) -> None:
        self._metrics.merge(HostMetrics.of_intervals(self._metrics.layout, np.concatenate(self._waiting)))
        self._waiting.clear()
        self._num_waiting = 0
