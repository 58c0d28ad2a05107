"""The block bootstrap: how far a statistic of a series may be off when neighboring values are alike.

A machine is slow for a while and then fast again, so step times that follow each other are correlated, and drawing them
one by one would promise far too much. Whole blocks of neighbors are drawn instead, from a series that is closed to a
ring so that each value is drawn equally often. The length of the blocks comes from the autocorrelation of the series.
"""

from collections.abc import Callable

import numpy as np

NUM_RESAMPLES = 1000
_MAX_CELLS = 1 << 22

Statistic = Callable[[np.ndarray], np.ndarray]
"""Takes an array of shape `(resamples, values)`, and gives one number for each resample."""


def autocorrelation(series: np.ndarray, num_lags: int) -> np.ndarray:
    """The autocorrelation of a series at the lags 0 to `num_lags`; 0 beyond the first for one that never changes."""
    centred = np.asarray(series, float) - np.mean(series)
    size = 1 << (2 * len(centred) - 1).bit_length()  # room for the longest lag, so that nothing wraps around
    power = np.abs(np.fft.rfft(centred, size)) ** 2
    covariance = np.fft.irfft(power, size)[: num_lags + 1]
    scale = covariance[0]
    if scale <= 1e-24 * max(float(np.mean(series)) ** 2, 1e-300) * len(centred):
        return np.eye(1, num_lags + 1)[0]
    return covariance / scale


def block_length(series: np.ndarray) -> int:
    """How long blocks have to be, by the rule of Politis and White (2004, corrected 2009) for blocks on a ring.

    Args:
        series: The values, in the order in which they came.

    Returns:
        At least 1, at most a third of the series.
    """
    num_values = len(series)
    if num_values < 4:
        return 1
    max_lag = min(num_values - 1, int(np.ceil(np.sqrt(num_values))) + 5)
    correlation = autocorrelation(series, 2 * max_lag if 2 * max_lag < num_values else num_values - 1)
    bandwidth = min(2 * _last_correlated_lag(correlation[1 : max_lag + 1], num_values), len(correlation) - 1)
    if bandwidth == 0:
        return 1
    lags = np.arange(1, bandwidth + 1)
    weights = np.minimum(1.0, 2.0 * (1.0 - lags / bandwidth))  # a trapezoid: one, then down to zero
    spectrum = 1.0 + 2.0 * np.sum(weights * correlation[1 : bandwidth + 1])
    slope = 2.0 * np.sum(weights * lags * correlation[1 : bandwidth + 1])
    if spectrum <= 0:
        return 1
    length = (1.5 * (slope / spectrum) ** 2 * num_values) ** (1 / 3)
    return int(np.clip(np.ceil(length), 1, max(num_values // 3, 1)))


def _last_correlated_lag(correlation: np.ndarray, num_values: int) -> int:
    """The lag after which several in a row are no larger than chance makes them."""
    run_length = max(5, int(np.ceil(np.sqrt(np.log10(num_values)))))
    limit = 2.0 * np.sqrt(np.log10(num_values) / num_values)
    is_small = np.abs(correlation) < limit
    for lag in range(len(correlation)):
        if is_small[lag : lag + run_length].all():
            return lag
    return len(correlation)


def resampled(
    series: np.ndarray,
    statistic: Statistic,
    rng: np.random.Generator,
    *,
    length: int | None = None,
    num_resamples: int = NUM_RESAMPLES,
) -> np.ndarray:
    """A statistic of series that are made of blocks of a series.

    Args:
        series: The values in order, along the first axis; other axes are drawn together with it.
        statistic: What to compute; see `Statistic`. Other axes of the series come last.
        rng: Where chance comes from.
        length: How long the blocks are; by the autocorrelation if left out, which needs a series of numbers.
        num_resamples: How many series to make.

    Returns:
        One value (or row) per resample.
    """
    series = np.asarray(series, float)
    num_values = len(series)
    length = block_length(series) if length is None else length
    per_batch = max(1, _MAX_CELLS // max(series.size, 1))
    found = []
    for first in range(0, num_resamples, per_batch):
        indices = _draw_indices(num_values, length, min(per_batch, num_resamples - first), rng)
        found.append(statistic(series[indices]))
    return np.concatenate(found)


def _draw_indices(num_values: int, length: int, num_resamples: int, rng: np.random.Generator) -> np.ndarray:
    """The positions that each resample takes: blocks on a ring, side by side."""
    num_blocks = -(-num_values // length)
    starts = rng.integers(0, num_values, (num_resamples, num_blocks, 1))
    indices = (starts + np.arange(length)) % num_values
    return indices.reshape(num_resamples, -1)[:, :num_values]
