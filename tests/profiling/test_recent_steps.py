"""Durations of the last steps: what counts, and what is unusual."""

from trackside.profiling.recent_steps import RecentStepTimes


def filled(num_steps: int = 30, seconds: float = 0.01) -> RecentStepTimes:
    times = RecentStepTimes()
    for step in range(num_steps + 1):
        times.add(step, step * seconds)
    return times


def test_duration_is_from_completion_to_completion() -> None:
    """The median is that of the distances between completions; the first step has none."""
    times = filled(num_steps=4)
    assert len(times) == 4
    assert abs(times.median_s() - 0.01) < 1e-9


def test_breaks_and_disturbed_steps_do_not_count() -> None:
    """The step after a break and a step that was disturbed have no duration."""
    times = filled(num_steps=2)
    times.break_off()
    times.add(3, 100.0)
    times.add(4, 200.0, is_disturbed=True)
    assert len(times) == 2


def test_memory_is_bounded() -> None:
    """Only the latest steps are remembered."""
    times = RecentStepTimes(max_steps=8)
    for step in range(100):
        times.add(step, float(step))
    assert len(times) == 8


def test_slow_step_is_found() -> None:
    """Of the steps since the last look, one that took much longer than those before is named with the median."""
    times = filled(30)
    times.add(31, 0.30 + 0.1)
    slow = times.find_slow(after_step=30, factor=5.0)
    assert slow is not None
    assert slow.step == 31
    assert abs(slow.seconds - 0.1) < 1e-9
    assert times.find_slow(after_step=30, factor=20.0) is None


def test_nothing_is_unusual_at_first() -> None:
    """With few steps to compare with, or none since the last look, nothing is found."""
    assert filled(10).find_slow(after_step=9, factor=0.1) is None
    assert filled(30).find_slow(after_step=30, factor=0.1) is None
    assert RecentStepTimes().median_s() is None
