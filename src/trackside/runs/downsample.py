"""Long series as few points for a chart, without losing a spike or closing a gap."""

import numpy as np


def spike_indices(values: np.ndarray, num_points: int) -> np.ndarray:
    """Which points to draw: of each stretch the smallest, the largest, and one that is not finite, if any.

    The first and the last point are always among them, so that the line keeps its ends.

    Args:
        values: The series.
        num_points: About how many points to keep; at most half as many again where there are gaps.

    Returns:
        The indices in order; all of them where the series is short enough.
    """
    length = len(values)
    if length <= max(num_points, 4):
        return np.arange(length)
    size = -(-2 * length // num_points)
    num_buckets = -(-length // size)
    padded = np.full(num_buckets * size, np.nan)
    padded[:length] = values
    buckets = padded.reshape(num_buckets, size)
    gaps = ~np.isfinite(buckets)
    starts = np.arange(num_buckets) * size
    chosen = [
        np.array([0, length - 1]),
        starts + np.where(gaps, np.inf, buckets).argmin(axis=1),
        starts + np.where(gaps, -np.inf, buckets).argmax(axis=1),
        (starts + gaps.argmax(axis=1))[gaps.any(axis=1)],
    ]
    indices = np.unique(np.concatenate(chosen))
    return indices[indices < length]  # the padding of the last stretch is not data


def bucket_means(values: np.ndarray, weights: np.ndarray, num_buckets: int) -> np.ndarray:
    """Weighted means of stretches of equal length, for areas, whose size must not change.

    Args:
        values: One row per point, one column per area.
        weights: What each point counts, such as the number of its steps.
        num_buckets: The largest number of stretches.

    Returns:
        One row per stretch; NaN where all weights are zero.
    """
    starts = bucket_starts(len(values), num_buckets)
    if not len(starts):
        return np.empty((0, values.shape[1]))
    weighted = np.add.reduceat(values * weights[:, None], starts, axis=0)
    total = np.add.reduceat(weights, starts)[:, None]
    return np.divide(weighted, total, out=np.full_like(weighted, np.nan), where=total > 0)


def bucket_starts(length: int, num_buckets: int) -> np.ndarray:
    """Where each of at most `num_buckets` stretches of equal length begins."""
    return np.arange(0, length, max(-(-length // num_buckets), 1))
