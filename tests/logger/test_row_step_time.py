"""Seconds per step from row to row, without what is no training step."""

import pytest

from trackside.logger.row_step_time import RowStepTime


@pytest.fixture
def timer():
    timer = RowStepTime()
    timer.start(0, 0.0)
    return timer


def test_seconds_per_step(timer):
    """The time between two rows, over the steps between them."""
    assert timer.lap(10, 5.0) == 0.5
    assert timer.lap(12, 6.0) == 0.5


def test_excluded_time(timer):
    """Time that is left out is that of the next row only."""
    timer.exclude(3.0)
    assert timer.lap(2, 5.0) == 1.0
    assert timer.lap(4, 7.0) == 1.0


def test_a_span_is_left_out_of_the_row_that_it_belongs_to(timer):
    """Rows of steps before it are whole, though they are logged after it, one by one or together."""
    timer.exclude_span(2.5, 9.5)
    assert timer.laps([1, 2], [1.0, 2.0]) == [1.0, 1.0]
    assert timer.laps([3, 4], [10.0, 11.0]) is None
    assert timer.lap(3, 10.0) == 1.0
    assert timer.laps([4, 5], [11.0, 12.0]) == [1.0, 1.0]


def test_a_span_during_which_a_step_was_under_way_counts_from_its_end(timer):
    """What the device computed while the host did something else is a step."""
    timer.exclude_span(2.0, 9.0)
    assert timer.lap(1, 4.0) == 4.0
    assert timer.lap(2, 10.0) == 1.0


def test_pause_leaves_out_steps_and_time(timer):
    """Steps during a pause count neither with their number nor with their time."""
    timer.pause(4, 4.0)
    timer.resume(8, 104.0)
    assert timer.lap(10, 106.0) == 1.0


def test_row_inside_a_pause_has_no_time(timer):
    """A row of nothing but paused steps has none, and what was counted there is not left out twice."""
    timer.pause(0, 0.0)
    assert timer.lap(5, 50.0) is None
    timer.exclude(7.0)
    timer.resume(6, 60.0)
    assert timer.lap(10, 64.0) == 1.0


def test_rows_before_a_pause_are_whole_though_they_come_after_it(timer):
    """Rows of a loop that does not wait for its values are logged when steps after them are paused, or count again."""
    timer.pause(3, 3.0)
    assert timer.lap(1, 1.0) == 1.0
    timer.resume(5, 50.0)
    assert timer.lap(2, 2.0) == 1.0
    assert timer.lap(3, 3.0) == 1.0
    assert timer.lap(4, 20.0) is None
    assert timer.lap(6, 51.0) == 1.0
    assert timer.laps([7, 8], [52.0, 53.0]) == [1.0, 1.0]


def test_first_row_without_a_start():
    """Before it was started there is nothing to tell."""
    assert RowStepTime().lap(3, 1.0) is None
