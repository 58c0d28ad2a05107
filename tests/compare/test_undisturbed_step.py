from dataclasses import replace

import numpy as np
import pytest

from tests.compare.series import step_series
from trackside.compare.disturbance import StepSeries
from trackside.compare.undisturbed_step import StepTimeChange, compare_step_times, slowest_stretches


def compare(before: StepSeries, after: StepSeries) -> StepTimeChange:
    return compare_step_times(before, after, np.random.default_rng(0))


def pair(seed: int, slowdown: float = 0.0, **options: float) -> StepTimeChange:
    rng = np.random.default_rng(seed)
    return compare(step_series(rng, **options), step_series(rng, true_s=1e-3 * (1 + slowdown), **options))


def regrouped(steps: StepSeries, size: int) -> StepSeries:
    """The same run logged less often."""
    seconds = steps.seconds.reshape(-1, size).mean(axis=1)
    return replace(steps, seconds=seconds, num_steps=np.full(len(seconds), size))


@pytest.mark.slow
def test_runs_of_one_program_give_no_alarm():
    """Of 20 pairs that differ in noise only, intervals hold zero, and none is a regression beyond 5 %."""
    changes = [pair(seed) for seed in range(20)]
    assert not any(change.is_beyond(0.05) for change in changes)
    assert sum(change.verdict == "no difference" for change in changes) >= 19


@pytest.mark.slow
def test_a_slowdown_of_a_tenth_is_found():
    """Of 20 pairs with a slowdown of 10 % under noise that is larger, nearly all are found, near their true size."""
    changes = [pair(seed, slowdown=0.1) for seed in range(20)]
    assert sum(change.is_beyond(0.05) for change in changes) >= 19
    assert np.median([change.change for change in changes]) == pytest.approx(0.1, abs=0.015)
    assert sum(change.low <= 0.1 <= change.high for change in changes) >= 18


def test_a_speedup_is_found():
    """A run that is faster says so, and is no regression."""
    change = pair(0, slowdown=-0.1)
    assert change.verdict == "faster"
    assert not change.is_beyond(0.0)


def test_a_small_slowdown_is_within_the_limit():
    """One that is sure but below the limit is no regression."""
    rng = np.random.default_rng(0)
    change = compare(step_series(rng, noise=0.0), step_series(rng, true_s=1.06e-3, noise=0.0))
    assert change.verdict == "slower"
    assert not change.is_beyond(0.1)


def test_a_busy_machine_does_not_hide_or_make_a_slowdown():
    """Where only the second run had a neighbour for most of the time, its median is far off and its verdict is not."""
    rng = np.random.default_rng(0)
    quiet, busy = step_series(rng, noise=0.05), step_series(rng, noise=0.05)
    is_disturbed = np.arange(len(busy.seconds)) % 1000 < 700
    busy = replace(busy, seconds=busy.seconds * np.where(is_disturbed, 1.5, 1.0))
    change = compare(quiet, busy)
    assert change.median_after_s > 1.3 * change.median_before_s
    assert change.verdict == "no difference"


def test_steps_noticed_late_do_not_look_fast():
    """A step that is noticed late makes the next look short; that is no speed."""
    rng = np.random.default_rng(0)
    before, after = step_series(rng, noise=0.05), step_series(rng, noise=0.05)
    late_s = np.where(rng.random(len(after.seconds)) < 0.2, 0.6e-3, 0.0)
    after = replace(after, seconds=after.seconds + late_s - np.concatenate([[0.0], late_s[:-1]]))
    assert np.quantile(after.seconds, 0.05) < 0.6 * np.quantile(before.seconds, 0.05)
    change = compare(before, after)
    assert change.verdict not in ("faster", "slower")
    assert change.change == pytest.approx(0.0, abs=0.02)


def test_stretches():
    """Each value becomes the slowest mean of the stretches that end with it."""
    np.testing.assert_allclose(slowest_stretches(np.array([1.0, 5.0, 1.0, 1.0]), 2), [5.0, 3.0, 1.0])
    np.testing.assert_allclose(slowest_stretches(np.array([1.0, 5.0]), 1), [1.0, 5.0])


def test_runs_that_log_differently_are_seen_through_the_same_lens():
    """A run that logs each step and one that logs every ten are compared by intervals of ten."""
    rng = np.random.default_rng(0)
    change = compare(step_series(rng, noise=0.05), regrouped(step_series(rng, noise=0.05), 10))
    assert change.steps_per_interval == 10
    assert change.num_intervals == (300, 300)
    assert change.verdict == "no difference"


def test_a_long_run_is_looked_at_in_fewer_intervals():
    """A million steps cost no more than some thousand."""
    rng = np.random.default_rng(0)
    seconds = 1e-3 * (1 + rng.exponential(0.01, 1_000_000))
    series = StepSeries("long", seconds, np.ones(len(seconds), np.int64))
    change = compare(series, series)
    assert max(change.num_intervals) <= 1 << 14
    assert change.change == pytest.approx(0.0)


def test_too_few_steps_cannot_tell():
    """A short run is no alarm, however slow: it says what is needed."""
    rng = np.random.default_rng(0)
    change = compare(step_series(rng), step_series(rng, true_s=2e-3, num_steps=30, name="short"))
    assert change.verdict == "cannot tell"
    assert not change.is_beyond(0.05)
    assert "short has 30 clean intervals" in change.problem
    assert "log_every_n_steps" in change.problem


def test_no_steps_cannot_tell():
    """A run without any clean step has no figures, and says why."""
    empty = StepSeries("empty", np.zeros(0), np.zeros(0, np.int64))
    change = compare(step_series(np.random.default_rng(0)), empty)
    assert change.change is None
    assert change.verdict == "cannot tell"
    assert "empty has 0 clean intervals" in change.problem


def test_a_run_that_was_never_undisturbed_cannot_tell():
    """Where even the fastest steps are spread out, nothing is said, and what to do is."""
    rng = np.random.default_rng(0)
    noisy = StepSeries("noisy", 1e-3 * np.exp(rng.standard_normal(4000)), np.full(4000, 10))
    change = compare(noisy, noisy)
    assert change.verdict == "cannot tell"
    assert "quieter machine" in change.problem


def test_batches_of_other_sizes_are_compared_by_the_example():
    """A step twice as large that takes 1.5 times as long is faster."""
    rng = np.random.default_rng(0)
    before = replace(step_series(rng, noise=0.05), batch_size=8.0)
    after = replace(step_series(rng, true_s=1.5e-3, noise=0.05), batch_size=16.0)
    change = compare(before, after)
    assert change.per == "example"
    assert change.verdict == "faster"
    assert change.change == pytest.approx(-0.25, abs=0.02)


def test_the_interval_is_the_same_each_time():
    """The same two runs give the same interval."""
    assert pair(3) == pair(3)


def test_plain_values():
    """As plain values it has the change and the verdict beside the figures."""
    plain = pair(0, slowdown=0.1).to_dict()
    assert plain["verdict"] == "slower"
    assert plain["low"] < plain["change"] < plain["high"]


@pytest.mark.parametrize(("is_noisy_second", "verdict"), [(True, "faster"), (False, "cannot tell")])
def test_noise_of_the_faster_run_leaves_no_doubt(is_noisy_second, verdict):
    """Noise makes a run seem slower: one that is faster in spite of it is so, and the slower one may only seem so."""
    rng = np.random.default_rng(0)
    quick, slow = (seconds * (1.0 + 0.02 * rng.random(4000)) for seconds in (1e-3, 1e-2))
    noise = np.exp(0.5 * rng.standard_normal(4000))
    first = StepSeries("first", slow * (1.0 if is_noisy_second else noise), np.full(4000, 10))
    second = StepSeries("second", quick * (noise if is_noisy_second else 1.0), np.full(4000, 10))
    assert compare(first, second).verdict == verdict
