"""Durations of the last steps: what counts, and what is unusual."""

from trackside.profiling.call_record import CallRecord
from trackside.profiling.recent_steps import RecentStepTimes


def add(times: RecentStepTimes, step: int, completed_s: float, is_disturbed: bool = False, num_steps: int = 1) -> None:
    """Add a call, whose last step is given."""
    call = CallRecord(step - num_steps + 1, num_steps, 0, 1, *[0.0] * 5, False, False, None, None)
    call.completed_s, call.is_disturbed = completed_s, is_disturbed
    times.add_calls([call], is_disturbed=False)


def filled(num_steps: int = 30, seconds: float = 0.01) -> RecentStepTimes:
    times = RecentStepTimes()
    for step in range(num_steps + 1):
        add(times, step, step * seconds)
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
    add(times, 3, 100.0)
    add(times, 4, 200.0, is_disturbed=True)
    assert len(times) == 2


def test_calls_of_several_steps_and_of_none() -> None:
    """A call of several steps is one entry with the time of a step; one that makes none leaves no trace."""
    times = RecentStepTimes()
    for step, num_steps, completed_s in ((1, 1, 1.0), (5, 4, 3.0), (5, 0, 50.0), (6, 1, 3.5)):
        add(times, step, completed_s, num_steps=num_steps)
    assert len(times) == 2
    assert times.median_s() == 0.5


def test_steps_within_a_capture_do_not_count() -> None:
    """Whoever takes it, all calls given then are disturbed."""
    times = filled(num_steps=2)
    call = CallRecord(3, 1, 0, 1, *[0.0] * 5, False, False, None, None)
    call.completed_s = 0.03
    times.add_calls([call], is_disturbed=True)
    assert len(times) == 2
    assert times.last_s == 0.03


def test_memory_is_bounded() -> None:
    """Only the latest steps are remembered."""
    times = RecentStepTimes(max_steps=8)
    for step in range(100):
        add(times, step, float(step))
    assert len(times) == 8


def test_slow_step_is_found() -> None:
    """Of the steps since the last look, one that took much longer than those before is named with the median."""
    times = filled(30)
    add(times, 31, 0.30 + 0.1)
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
