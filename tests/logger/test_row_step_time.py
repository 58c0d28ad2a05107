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


def test_first_row_without_a_start():
    """Before it was started there is nothing to tell."""
    assert RowStepTime().lap(3, 1.0) is None
