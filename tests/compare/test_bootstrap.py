import numpy as np
import pytest

from tests.compare.series import correlated
from trackside.compare.bootstrap import autocorrelation, block_length, resampled
from trackside.compare.difference import interval_of


def means(drawn: np.ndarray) -> np.ndarray:
    return drawn.mean(axis=1)


def coverage(correlation: float, length: int | None, num_series: int = 150) -> float:
    """How often the interval of the mean holds the true mean, 0."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(num_series):
        series = correlated(rng, 1500, correlation)
        low, high = interval_of(resampled(series, means, rng, length=length, num_resamples=200))
        held.append(low <= 0.0 <= high)
    return float(np.mean(held))


def test_autocorrelation_of_a_correlated_series():
    """A series whose neighbours correlate by 0.8 shows 0.8 at lag 1 and its powers beyond."""
    found = autocorrelation(correlated(np.random.default_rng(0), 50_000, 0.8), 3)
    np.testing.assert_allclose(found, [1.0, 0.8, 0.64, 0.512], atol=0.03)


def test_autocorrelation_of_a_constant_series():
    """A series that never changes correlates with itself only, and nothing is divided by zero."""
    np.testing.assert_array_equal(autocorrelation(np.full(100, 0.1), 3), [1, 0, 0, 0])


def test_blocks_are_short_without_correlation():
    """Independent values need no blocks."""
    assert block_length(np.random.default_rng(0).standard_normal(2000)) <= 5


def test_blocks_grow_with_correlation():
    """The longer neighbours are alike, the longer the blocks."""
    rng = np.random.default_rng(0)
    lengths = [block_length(correlated(rng, 2000, correlation)) for correlation in (0.3, 0.8, 0.97)]
    assert lengths[0] < lengths[1] < lengths[2]


@pytest.mark.parametrize("num_values", [1, 3, 4, 10])
def test_blocks_of_a_short_series_fit_into_it(num_values: int):
    """A block is at least one value and no longer than a third of the series."""
    length = block_length(np.arange(num_values, dtype=float))
    assert 1 <= length <= max(num_values // 3, 1)


def test_intervals_hold_the_truth_of_a_correlated_series():
    """With neighbours that correlate by 0.8, intervals of 95 % hold the true mean about that often."""
    assert coverage(0.8, None) >= 0.87


def test_intervals_without_blocks_do_not():
    """Drawing values one by one promises too much: this is what blocks are for."""
    assert coverage(0.8, 1) < 0.65


def test_intervals_hold_the_truth_of_an_independent_series():
    """Blocks do no harm where there is no correlation."""
    assert coverage(0.0, None) >= 0.9


def test_a_seed_gives_the_same_draws():
    """The same seed gives the same intervals, so that a comparison can be repeated."""
    series = np.random.default_rng(1).standard_normal(100)
    first, second = (resampled(series, means, np.random.default_rng(0)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_other_axes_are_drawn_together():
    """Rows of several values stay whole."""
    rows = np.stack([np.arange(50.0), 2 * np.arange(50.0)], axis=1)
    drawn = resampled(rows, lambda drawn: drawn.sum(axis=1), np.random.default_rng(0), length=5)
    np.testing.assert_allclose(drawn[:, 1], 2 * drawn[:, 0])


def test_long_series_are_drawn_in_batches():
    """A series of millions of values does not need memory for all resamples at once, and gives all of them."""
    drawn = resampled(np.ones(100_000), means, np.random.default_rng(0), length=100, num_resamples=90)
    np.testing.assert_allclose(drawn, np.ones(90))
