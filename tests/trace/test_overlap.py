"""Wall time shared among operations that overlap."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside.trace.overlap import Segments, self_segments, share_wall

INTERVALS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=25)


def shares_of(*intervals: tuple[int, int]) -> list[float]:
    start, end = np.array(intervals, np.int64).T
    return share_wall(Segments(start, end, np.arange(len(start))))[0].tolist()


def self_times(*events: tuple[int, int, int]) -> list[int]:
    """The self time of each event, given as line, start and end."""
    line, start, end = np.array(events, np.int64).T
    segments = self_segments(line, start, end)
    return np.bincount(segments.event, weights=segments.end_ps - segments.start_ps, minlength=len(events)).tolist()


def covered(start: np.ndarray, end: np.ndarray) -> int:
    return len({moment for first, last in zip(start, end, strict=True) for moment in range(int(first), int(last))})


def test_alone_an_operation_has_its_whole_time():
    """Without overlap, a share is a duration."""
    assert shares_of((0, 4), (4, 10), (12, 13)) == [4, 6, 1]


def test_overlap_is_split_evenly():
    """While n operations run, each gets a nth."""
    assert shares_of((0, 6), (2, 4), (2, 6)) == pytest.approx([2 + 2 / 3 + 1, 2 / 3, 2 / 3 + 1])


def test_overlap_is_split_by_weight():
    """While operations run, each gets as much of the time as it counts for; alone, all of it."""
    segments = Segments(np.array([0, 2, 20]), np.array([6, 6, 21]), np.arange(3))
    shares, timeline = share_wall(segments, np.array([0.3, 0.1, 0.001]))
    assert shares.tolist() == pytest.approx([2 + 3, 1, 1])
    assert timeline.busy_ps[-1] == pytest.approx(shares.sum())


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(INTERVALS)
def test_shares_sum_to_the_time_in_which_anything_ran(intervals):
    """Whatever overlaps, the shares together are the busy time, and no share is longer than its operation."""
    _, start, duration = np.array(intervals, np.int64).T
    shares, timeline = share_wall(Segments(start, start + duration, np.arange(len(start))))
    assert shares.sum() == pytest.approx(covered(start, start + duration))
    assert timeline.busy_ps[-1] == pytest.approx(shares.sum())
    assert (shares <= duration + 1e-9).all()


def test_gaps_are_where_nothing_runs():
    """A gap lies between operations, not where they meet."""
    _, timeline = share_wall(Segments(np.array([0, 3, 9]), np.array([3, 5, 10]), np.arange(3)))
    starts, ends = timeline.gaps()
    assert (starts.tolist(), ends.tolist()) == ([5], [9])
    assert timeline.busy_until(np.array([4, 7, 10])).tolist() == [4, 5, 6]


def test_nested_operations_count_self_time_only():
    """What lies within an operation on its line is taken off its time, at every depth."""
    assert self_times((0, 0, 10), (0, 2, 8), (0, 3, 4), (0, 5, 7)) == [4, 3, 1, 2]


def test_lines_do_not_nest_in_each_other():
    """Operations at the same time on two lines run side by side."""
    assert self_times((0, 0, 10), (1, 2, 8)) == [10, 6]


def test_operations_behind_each_other_keep_their_time():
    """Meeting is not nesting, also behind a nested group."""
    assert self_times((0, 0, 5), (0, 1, 2), (0, 5, 8), (0, 9, 10)) == [4, 1, 3, 1]


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(INTERVALS)
def test_self_times_of_a_line_sum_to_the_time_in_which_it_was_used(intervals):
    """Taking nested events apart loses no time and counts none twice, even where they overlap only in part."""
    line, start, duration = np.array(intervals, np.int64).T
    segments = self_segments(line, start, start + duration)
    for each in np.unique(line):
        own = line[segments.event] == each
        total = (segments.end_ps - segments.start_ps)[own].sum()
        assert total == covered(start[line == each], (start + duration)[line == each])


def test_no_operations():
    """Nothing gives nothing."""
    empty = np.zeros(0, np.int64)
    shares, timeline = share_wall(self_segments(empty, empty, empty))
    assert shares.size == 0
    assert timeline.busy_until(np.array([5])).tolist() == [0]
