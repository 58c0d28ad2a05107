"""A learning-rate range test in the terminal: the curve, and what it suggests."""

import math
from typing import TYPE_CHECKING

import numpy as np

from trackside.text import four_digits, wrap
from trackside.trainer.learning_rate_curve import rate_text

if TYPE_CHECKING:
    from trackside.trainer.learning_rate_curve import LearningRateTest

_COLUMNS, _LINES = 64, 10
_LOG_RATIO = 20.0
_POINT, _MARK = "·", "│"


def render_test(test: "LearningRateTest", width: int = 100) -> str:
    """The smoothed losses over the learning rates, with a mark at the suggestion, and the reason for it.

    Args:
        test: The test.
        width: The columns of the text below the curve.
    """
    suggested = "none" if test.suggestion is None else rate_text(test.suggestion, test.is_relative)
    what = "multiple of the optimizer's own learning rate" if test.is_relative else "learning rate"
    lines = [*_chart(test), "", f"suggested {what}: {suggested}", *wrap(test.reason, width)]
    return "\n".join(line.rstrip() for line in lines)


def _chart(test: "LearningRateTest") -> list[str]:
    low, high = test.shown_range
    heights = _heights(test.smoothed, low, high)
    num_columns = min(_COLUMNS, len(heights))
    columns = np.array_split(heights, num_columns)
    marked = _marked_column(test, num_columns)
    grid = [[_MARK if column == marked else " " for column in range(num_columns)] for _ in range(_LINES)]
    for column, values in enumerate(columns):
        grid[_LINES - 1 - round((_LINES - 1) * float(np.mean(values)))][column] = _POINT
    labels = {0: four_digits(high), _LINES - 1: four_digits(low)}
    margin = max(map(len, labels.values()))
    rows = [f"{labels.get(index, ''):>{margin}} ┤{''.join(row)}" for index, row in enumerate(grid)]
    first, last = (rate_text(float(test.learning_rates[index]), test.is_relative) for index in (0, -1))
    return [*rows, f"{'':>{margin}}  {first}{last:>{max(num_columns - len(first), len(last) + 1)}}"]


def _heights(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """The values between 0 for the lowest and 1 for the highest to show, by their logarithm where they span decades."""
    if high == low:
        return np.zeros(len(values))
    bounded = np.clip(values, low, high)
    if low > 0 and high / low > _LOG_RATIO:
        return np.log(bounded / low) / math.log(high / low)
    return (bounded - low) / (high - low)


def _marked_column(test: "LearningRateTest", num_columns: int) -> int:
    if test.suggestion is None:
        return -1
    step = int(np.searchsorted(test.learning_rates, test.suggestion))
    ends = np.cumsum([len(part) for part in np.array_split(test.learning_rates, num_columns)])
    return int(np.searchsorted(ends, step, side="right"))
