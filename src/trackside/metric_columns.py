"""Rows of metrics that all have the same names, by column: many at once cost less than one by one."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

MetricRow = tuple[dict[str, float], int, int]
"""The numbers of a row by name, its step and its epoch."""


class NamedNumbers(NamedTuple):
    """The numbers of rows that have the same metrics."""

    names: tuple[str, ...]
    num_rows: int
    flat: list[float]
    """Row by row."""


class MetricColumns(NamedTuple):
    """Rows with the same metrics, in the order of their steps."""

    names: tuple[str, ...]
    flat: list[float]
    """The values, row by row."""
    steps: list[int]
    epochs: list[int]

    def rows(self) -> list[MetricRow]:
        """The rows one by one."""
        names, width, flat = self.names, len(self.names), self.flat
        values = (dict(zip(names, flat[at * width : (at + 1) * width], strict=True)) for at in range(len(self.steps)))
        return list(zip(values, self.steps, self.epochs, strict=True))

    def copied(self) -> "MetricColumns":
        """The same in lists of its own."""
        return MetricColumns(self.names, self.flat.copy(), self.steps.copy(), self.epochs.copy())

    def by_name(self) -> dict[str, list[float]]:
        """The values of each metric."""
        width = len(self.names)
        return {name: self.flat[at::width] for at, name in enumerate(self.names)}

    def extended(self, names: tuple[str, ...], *columns: Sequence[float]) -> "MetricColumns":
        """The same with more metrics.

        Args:
            names: What they are called.
            *columns: The values of each.
        """
        width = len(self.names)
        own = (self.flat[at::width] for at in range(width))
        flat = list(chain.from_iterable(zip(*own, *columns, strict=True)))
        return self._replace(names=self.names + names, flat=flat)

    @property
    def every(self) -> int:
        """How many steps its rows are apart; 0 if they are not equally far apart, or of several epochs."""
        steps, epochs = self.steps, self.epochs
        if len(steps) < 2:
            return len(steps)
        every = steps[1] - steps[0]
        is_even = every > 0 and epochs[0] == epochs[-1] and steps == list(range(steps[0], steps[-1] + 1, every))
        return every if is_even else 0
