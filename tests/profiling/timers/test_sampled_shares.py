import pytest

from trackside.profiling.timers.durations import DurationSketch
from trackside.profiling.timers.sampled_shares import MAX_SAMPLES, MIN_SAMPLES, SampledShares, pool

pytestmark = pytest.mark.usefixtures("no_compile_cache")


def test_samples_are_pooled_by_their_length():
    """A long sample counts more than a short one."""
    assert pool([(9.0, 10.0), (0.0, 1.0)]).share == pytest.approx(9 / 11)


def test_the_interval_is_that_of_the_mean_for_samples_of_one_length():
    """Student's t for three samples of 60, 70 and 80 %: 70 % plus and minus 4.303 times 10 % / sqrt(3)."""
    estimate = pool([(0.6, 1.0), (0.7, 1.0), (0.8, 1.0)])
    assert estimate.share == pytest.approx(0.7)
    assert (estimate.low, estimate.high) == pytest.approx((0.7 - 4.303 * 0.1 / 3**0.5, 0.7 + 4.303 * 0.1 / 3**0.5))


def test_the_interval_is_a_share():
    """It does not leave 0 to 1, and many samples that agree make it narrow."""
    wide, narrow = pool([(0.1, 1.0), (0.9, 1.0)]), pool([(0.5, 1.0)] * 50)
    assert (wide.low, wide.high, narrow.low, narrow.high) == (0.0, 1.0, 0.5, 0.5)


def test_old_samples_are_forgotten():
    """Memory is bounded."""
    share = SampledShares().expect("loss", DurationSketch())
    for _ in range(MAX_SAMPLES + 10):
        share.add(1.0, 2.0)
    assert share.num_samples == MAX_SAMPLES


def test_an_operation_is_awaited_until_it_has_a_sample_and_a_step():
    """A sample alone does not say how long anything took."""
    shares, steps = SampledShares(), DurationSketch()
    share = shares.expect("loss", steps)
    for _ in range(MIN_SAMPLES):
        share.add(1.0, 2.0)
    assert (shares.awaited(), shares.found()) == (["loss"], [])
    steps.add(3.0)
    assert (shares.awaited(), [share.name for share in shares.found()]) == ([], ["loss"])


def test_an_operation_is_awaited_until_it_has_enough_samples():
    """One or two say nothing about how far samples differ."""
    shares, steps = SampledShares(), DurationSketch()
    steps.add(3.0)
    share = shares.expect("loss", steps)
    for _ in range(MIN_SAMPLES - 1):
        share.add(1.0, 2.0)
    assert shares.awaited() == ["loss"]
    share.add(1.0, 2.0)
    assert shares.awaited() == []


def test_clearing_forgets_what_is_awaited():
    """After a reset nothing is awaited until it is asked for again, and then it has no sample and no step."""
    shares, steps = SampledShares(), DurationSketch()
    steps.add(3.0)
    shares.expect("loss", steps).add(1.0, 2.0)
    shares.clear()
    assert (shares.awaited(), shares.found(), steps.summarise().count) == ([], [], 0)
    shares.expect("loss", steps)
    assert shares.awaited() == ["loss"]
