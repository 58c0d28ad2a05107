"""Series as lines of bars."""

import numpy as np

from trackside.cli.sparkline import sparkline


def test_falling_series_falls() -> None:
    """The highest value is a full bar, the lowest the smallest."""
    assert sparkline(np.arange(8.0)[::-1], 8) == "█▇▆▅▄▃▂▁"


def test_long_series_is_averaged() -> None:
    """A series that is longer than the line is averaged in parts."""
    assert sparkline(np.repeat([0.0, 7.0], 500), 2) == "▁█"


def test_short_series_is_not_stretched() -> None:
    """Three values are three columns, however wide the line is."""
    assert len(sparkline(np.array([3.0, 2.0, 1.0]), 40)) == 3


def test_decades_are_drawn_by_their_logarithm() -> None:
    """Of a series that spans decades, each decade is as high as the others."""
    assert sparkline(np.array([1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7]), 8) == "█▇▆▅▄▃▂▁"


def test_values_that_are_not_finite_are_marked() -> None:
    """A NaN is seen, and does not hide the others."""
    assert sparkline(np.array([1.0, np.nan, 0.0]), 3) == "█!▁"
    assert sparkline(np.array([np.nan, np.inf]), 3) == "!!"


def test_constant_and_empty_series() -> None:
    """A constant is a flat line, and nothing is nothing."""
    assert sparkline(np.ones(3), 3) == "▁▁▁"
    assert sparkline(np.zeros(0), 3) == ""
