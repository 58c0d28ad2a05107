"""Few points for long series: every spike and every gap stays, areas keep their size."""

import numpy as np
import pytest

from trackside.runs.downsample import bucket_means, bucket_starts, spike_indices

LENGTH = 1_000_000


@pytest.mark.parametrize("spike", [0, 1, 123_456, 777_777, LENGTH - 1])
@pytest.mark.parametrize("height", [50.0, -50.0])
def test_single_spike_stays(spike: int, height: float) -> None:
    """One point in a million that sticks out is among those that are drawn."""
    values = np.sin(np.arange(LENGTH) / 1000)
    values[spike] = height
    assert spike in spike_indices(values, 1000)


def test_few_points_are_left() -> None:
    """About as many points as were asked for, in order, with both ends."""
    indices = spike_indices(np.random.default_rng(0).normal(size=LENGTH), 1000)
    assert len(indices) <= 1002
    assert (np.diff(indices) > 0).all()
    assert (indices[0], indices[-1]) == (0, LENGTH - 1)


@pytest.mark.parametrize("length", [0, 1, 2, 5, 999, 1000])
def test_short_series_stay_whole(length: int) -> None:
    """A series that has room is drawn as it is."""
    assert spike_indices(np.zeros(length), 1000).tolist() == list(range(length))


@pytest.mark.parametrize("length", [1001, 1999, 2003, 54_321])
def test_indices_lie_in_the_series(length: int) -> None:
    """No point is made up where the last stretch is shorter than the others."""
    indices = spike_indices(np.random.default_rng(1).normal(size=length), 1000)
    assert indices.min() == 0
    assert indices.max() == length - 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_gap_of_one_point_stays(bad: float) -> None:
    """A single value that is not finite still interrupts the line, and hides no spike next to it."""
    values = np.zeros(LENGTH)
    values[500_000], values[500_001] = bad, 9.0
    indices = spike_indices(values, 1000)
    assert 500_000 in indices
    assert 500_001 in indices


def test_series_without_any_finite_value() -> None:
    """Nothing but NaN is still few points, and no error."""
    assert 0 < len(spike_indices(np.full(LENGTH, np.nan), 1000)) <= 1500


def test_means_keep_the_weighted_sum() -> None:
    """The area under the means is the area under the points."""
    rng = np.random.default_rng(2)
    values, weights = rng.uniform(size=(10_007, 3)), rng.integers(1, 5, 10_007).astype(float)
    means = bucket_means(values, weights, 400)
    starts = bucket_starts(len(values), 400)
    total = (means * np.add.reduceat(weights, starts)[:, None]).sum(axis=0)
    assert len(means) == len(starts) <= 400
    assert total == pytest.approx((values * weights[:, None]).sum(axis=0))


def test_means_of_nothing() -> None:
    """No rows give no means; stretches without weight give NaN."""
    assert bucket_means(np.empty((0, 2)), np.empty(0), 10).shape == (0, 2)
    assert np.isnan(bucket_means(np.ones((4, 1)), np.zeros(4), 2)).all()
