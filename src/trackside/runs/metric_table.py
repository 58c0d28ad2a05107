"""The metrics of one mode as columns."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from trackside.config.wording import did_you_mean
from trackside.optional import require
from trackside.runs.metric_blocks import is_given

_NUM_SHOWN = 5


class MetricTable:
    """The metrics that a run logged in one mode, one row per step in the order of steps.

    `table["loss_mean"]` is a column of float64, NaN where a row has no such value; `present` tells
    these from a NaN that was logged.

    Args:
        step: The training step of each row.
        epoch: Its epoch.
        t: When it was written, in seconds since the epoch.
        columns: The values by name.

    Attributes:
        step: The training step of each row, ascending.
        epoch: Its epoch.
        t: When it was written, in seconds since the epoch.
    """

    def __init__(self, step: np.ndarray, epoch: np.ndarray, t: np.ndarray, columns: Mapping[str, np.ndarray]):
        self.step = step
        self.epoch = epoch
        self.t = t
        self._columns = columns

    @property
    def names(self) -> list[str]:
        """The names of the metrics, in the order in which they first came."""
        return list(self._columns)

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self._columns[name]
        except KeyError:
            known = ", ".join(map(repr, self._columns)) or "none"
            raise KeyError(f"no metric {name!r}; there are {known}.{did_you_mean(name, self._columns)}") from None

    def present(self, name: str) -> np.ndarray:
        """The indices of the rows that have a metric, also of those that have it as NaN or infinite.

        Args:
            name: The metric.
        """
        return np.flatnonzero(is_given(self[name]))

    def has_at(self, name: str, index: int) -> bool:
        """Whether a row has a metric, if only as NaN.

        Args:
            name: The metric.
            index: The row; -1 is the last.
        """
        return bool(is_given(self[name][[index]])[0])

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        return f"MetricTable({len(self)} rows: {', '.join(self._columns)})"

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the step as its index, and `epoch`, `t` and the metrics as columns.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        pandas = require("pandas", "MetricTable.to_pandas()")
        # A metric called epoch, as rows of training have it, says the same as the row.
        columns = {"epoch": self.epoch, "t": self.t, **self._columns}
        return pandas.DataFrame(columns, index=pandas.Index(self.step, name="step"))

    def _repr_html_(self) -> str:
        from trackside.runs.notebook import html_table  # here: columns can be read without the rules of the findings

        names = [name for name in self._columns if name != "epoch"]
        rows = [
            [f"{self.step[index]}", f"{self.epoch[index]}", *(f"{self[name][index]:.6g}" for name in names)]
            for index in range(max(len(self) - _NUM_SHOWN, 0), len(self))
        ]
        return f"{html_table(['step', 'epoch', *names], rows)}<p>{len(self):,} rows; these are the last</p>"


class MetricModes(dict[str, MetricTable]):
    """The metrics of a run by mode. One that is not there is an error that says where to look."""

    def __missing__(self, mode: Any) -> MetricTable:
        holders = [known for known, table in self.items() if mode in table]
        where = f" It is a metric: write metrics[{holders[0]!r}][{mode!r}]." if holders else did_you_mean(mode, self)
        raise KeyError(f"no mode {mode!r}; there are {', '.join(map(repr, self)) or 'none'}.{where}")
