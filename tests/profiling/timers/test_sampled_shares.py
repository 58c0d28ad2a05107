import pytest

from trackside.profiling.timers.durations import DurationSketch
from trackside.profiling.timers.sampled_shares import (
    ALIKE,
    MAX_SAMPLES,
    MIN_SAMPLES,
    TRACER_ERROR,
    SampledShares,
    ShareSample,
    pool,
)

pytestmark = pytest.mark.usefixtures("no_compile_cache")


def samples(*shares: float) -> list[ShareSample]:
    """Samples of which both ways give the same share."""
    return [ShareSample(share, share, 1.4) for share in shares]


def test_a_sample_that_is_far_off_does_not_count():
    """The share is the median, whatever else one sample says."""
    assert pool(samples(0.5, 0.52, 0.9)).share == 0.52


def test_the_interval_is_that_of_the_mean():
    """Student's t for samples of 68, 70 and 72 %, which are alike: 70 % plus and minus 4.303 * 2 % * sqrt(2 / 3)."""
    estimate = pool(samples(0.68, 0.7, 0.72))
    assert estimate.share == pytest.approx(0.7)
    width = 4.303 * 0.02 * (ALIKE / 3) ** 0.5
    assert (estimate.low, estimate.high) == pytest.approx((0.7 - width, 0.7 + width))


@pytest.mark.parametrize(("num_in_progress", "share"), [(1.4, 0.42), (1.0, 0.62)])
def test_the_interval_holds_what_both_ways_give(num_in_progress, share):
    """Either may be right; that of the wall is believed where operations run one after the other."""
    shares = ((0.4, 0.6), (0.42, 0.62), (0.44, 0.64))
    estimate = pool([ShareSample(of_work, of_wall, num_in_progress) for of_work, of_wall in shares])
    width = 4.303 * 0.02 * (ALIKE / 3) ** 0.5
    assert (estimate.share, estimate.low, estimate.high) == pytest.approx((share, 0.42 - width, 0.62 + width))


def test_the_interval_is_a_share():
    """It does not leave 0 to 1, and is never narrower than tracing is accurate, however well samples agree."""
    wide, narrow = pool(samples(0.1, 0.9)), pool(samples(*[0.5] * 50))
    error = 0.5 * TRACER_ERROR
    assert (wide.low, wide.high, narrow.low, narrow.high) == pytest.approx((0.0, 1.0, 0.5 - error, 0.5 + error))


def test_old_samples_are_forgotten():
    """Memory is bounded."""
    share = SampledShares().expect("loss", DurationSketch())
    for _ in range(MAX_SAMPLES + 10):
        share.add(ShareSample(0.5, 0.5, 1.4))
    assert share.num_samples == MAX_SAMPLES


def test_an_operation_is_awaited_until_it_has_a_sample_and_a_step():
    """A sample alone does not say how long anything took."""
    shares, steps = SampledShares(), DurationSketch()
    share = shares.expect("loss", steps)
    for _ in range(MIN_SAMPLES):
        share.add(ShareSample(0.5, 0.5, 1.4))
    assert (shares.awaited(), shares.found()) == (["loss"], [])
    steps.add(3.0)
    assert (shares.awaited(), [share.name for share in shares.found()]) == ([], ["loss"])


def test_an_operation_is_awaited_until_it_has_enough_samples():
    """One or two say nothing about how far samples differ."""
    shares, steps = SampledShares(), DurationSketch()
    steps.add(3.0)
    share = shares.expect("loss", steps)
    for _ in range(MIN_SAMPLES - 1):
        share.add(ShareSample(0.5, 0.5, 1.4))
    assert shares.awaited() == ["loss"]
    share.add(ShareSample(0.5, 0.5, 1.4))
    assert shares.awaited() == []


def test_clearing_forgets_what_is_awaited():
    """After a reset nothing is awaited until it is asked for again, and then it has no sample and no step."""
    shares, steps = SampledShares(), DurationSketch()
    steps.add(3.0)
    shares.expect("loss", steps).add(ShareSample(0.5, 0.5, 1.4))
    shares.clear()
    assert (shares.awaited(), shares.found(), steps.summarise().count) == ([], [], 0)
    shares.expect("loss", steps)
    assert shares.awaited() == ["loss"]
