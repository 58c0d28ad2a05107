import numpy as np
import pytest

from trackside.decoding import r2_score
from trackside.errors import DataError


@pytest.fixture
def pair():
    rng = np.random.default_rng(0)
    targets = rng.normal(size=(5, 7, 3)) * [1, 10, 0.1]
    return targets, targets + rng.normal(size=targets.shape) * 0.05


def test_agrees_with_scikit_learn(pair):
    """Per output and in the mean, over all other axes."""
    metrics = pytest.importorskip("sklearn.metrics")
    targets, predictions = pair
    flat = targets.reshape(-1, 3), predictions.reshape(-1, 3)
    found = r2_score(targets, predictions)
    np.testing.assert_allclose(found.per_output, metrics.r2_score(*flat, multioutput="raw_values"))
    assert found.mean == pytest.approx(metrics.r2_score(*flat))


def test_targets_come_first(pair):
    """The variance to explain is that of the targets: predictions of their mean have an R² of 0."""
    targets, _ = pair
    means = np.broadcast_to(targets.reshape(-1, 3).mean(axis=0), targets.shape)
    np.testing.assert_allclose(r2_score(targets, means).per_output, 0, atol=1e-12)


def test_one_axis_is_one_output():
    """An array without an axis of outputs has one."""
    assert r2_score([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]).per_output.tolist() == [1.0]


def test_constant_targets_are_right_or_wrong():
    """Without variance to explain, R² is 1 for perfect predictions and 0 for others, and never infinite."""
    targets = np.full((4, 2), 0.1)
    predictions = targets.copy()
    predictions[0, 1] += 1e-3
    assert r2_score(targets, predictions).per_output.tolist() == [1.0, 0.0]


def test_nan_stays_nan():
    """A prediction that is not a number never counts as a good one."""
    targets = np.array([[0.0, 1.0], [1.0, 1.0]])
    assert np.isnan(r2_score(targets, np.full_like(targets, np.nan)).per_output).all()


def test_shapes_that_differ_are_refused():
    """Nothing is broadcast."""
    with pytest.raises(DataError, match=r"shape \(4, 1\) differs from that of the targets, \(4,\)"):
        r2_score(np.zeros(4), np.zeros((4, 1)))


def test_one_sample_is_too_few():
    """It has no variance."""
    with pytest.raises(DataError, match="at least 2 samples, got 1"):
        r2_score(np.zeros((1, 2)), np.zeros((1, 2)))
