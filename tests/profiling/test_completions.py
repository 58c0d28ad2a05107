import threading

import pytest

from trackside.clock import ManualClock
from trackside.profiling.completions import Call, CompletionWatcher


class Array:
    """An array that is there when it is told to be, at a time of the clock."""

    def __init__(self, clock, ready_at):
        self._clock = clock
        self._ready_at = ready_at

    def block_until_ready(self):
        self._clock.advance(max(self._ready_at - self._clock.now(), 0.0))


class DonatedArray:
    def block_until_ready(self):
        raise RuntimeError("Array has been deleted")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def watcher(clock):
    watcher = CompletionWatcher(clock)
    yield watcher
    watcher.stop()


def seconds_of(watcher, calls):
    """What calls took, in order; each as (start, returned, arrays)."""
    taken = []
    for start, returned, arrays in calls:
        watcher.watch(Call(start, returned, arrays, taken.append))
    watcher.wait(10)
    return taken


def test_a_call_takes_until_its_arrays_are_there(watcher, clock):
    """Not only until it returns."""
    assert seconds_of(watcher, [(1.0, 1.1, [Array(clock, 3.0), Array(clock, 6.0)])]) == [5.0]


def test_calls_that_queue_are_not_counted_twice(watcher, clock):
    """Three calls made at once that take two seconds each on the device take two seconds each."""
    calls = [(0.0, 0.1, [Array(clock, 2.0)]), (0.1, 0.2, [Array(clock, 4.0)]), (0.2, 0.3, [Array(clock, 6.0)])]
    assert seconds_of(watcher, calls) == pytest.approx([2.0, 2.0, 2.0])


def test_idle_time_between_calls_is_no_part_of_them(watcher, clock):
    """A call that starts after the one before was complete is counted from its own start."""
    assert seconds_of(watcher, [(0.0, 0.1, [Array(clock, 1.0)]), (5.0, 5.1, [Array(clock, 7.0)])]) == [1.0, 2.0]


def test_a_call_inside_of_another_is_part_of_it(watcher, clock):
    """The outer call is counted from its own start, not from the completion of the inner one."""
    inner, outer = (1.0, 1.5, [Array(clock, 4.0)]), (0.0, 2.0, [Array(clock, 6.0)])
    assert seconds_of(watcher, [inner, outer]) == [3.0, 6.0]


def test_calls_whose_arrays_were_given_away_share_the_time(watcher, clock):
    """Up to the next completion that can be seen; nothing is lost and nothing is counted twice."""
    calls = [(0.0, 0.1, [DonatedArray()]), (0.1, 0.2, [DonatedArray()]), (0.2, 0.3, [Array(clock, 6.0)])]
    assert seconds_of(watcher, calls) == [2.0, 2.0, 2.0]


def test_one_array_that_is_left_is_enough(watcher, clock):
    """Where only some were given away, the others tell."""
    assert seconds_of(watcher, [(0.0, 0.1, [DonatedArray(), Array(clock, 3.0)])]) == [3.0]


def test_arrays_are_let_go_when_they_are_there(watcher, clock):
    """A call that was recorded keeps no memory of the device."""
    call = Call(0.0, 0.1, [Array(clock, 1.0)], lambda seconds: None)
    watcher.watch(call)
    watcher.wait(10)
    assert call.arrays == ()


def test_watching_does_not_wait(watcher):
    """The caller goes on while an array is not there."""
    is_there = threading.Event()

    class SlowArray:
        def block_until_ready(self):
            is_there.wait(10)

    taken = []
    watcher.watch(Call(0.0, 0.1, [SlowArray()], taken.append))
    assert taken == []
    assert not watcher.wait(0.01)
    is_there.set()
    assert watcher.wait(10)
    assert len(taken) == 1


def test_a_record_that_fails_does_not_end_the_watching(watcher, clock, caplog):
    """The next call is recorded."""
    watcher.watch(Call(0.0, 0.1, [Array(clock, 1.0)], lambda seconds: 1 / 0))
    assert seconds_of(watcher, [(2.0, 2.1, [Array(clock, 3.0)])]) == [1.0]
    assert "could not be recorded" in caplog.text


def test_it_goes_on_after_being_stopped(watcher, clock):
    """Stopping waits for what was there; a later call starts it again."""
    assert seconds_of(watcher, [(0.0, 0.1, [Array(clock, 1.0)])]) == [1.0]
    watcher.stop()
    assert seconds_of(watcher, [(2.0, 2.1, [Array(clock, 3.0)])]) == [1.0]


def test_calls_from_before_a_reset_do_not_count(watcher, clock):
    """A call that compiles and is still under way at a reset is no part of what is measured from then on."""
    taken, is_there = [], threading.Event()

    class Late:
        def block_until_ready(self):
            assert is_there.wait(10)

    watcher.watch(Call(0.0, 0.1, [Late()], taken.append))
    clock.advance(1.0)
    watcher.forget()
    is_there.set()
    watcher.watch(Call(2.0, 2.1, [Array(clock, 3.0)], taken.append))
    watcher.wait(10)
    assert taken == [1.0]


def test_record_that_fails_while_somebody_waits(watcher, clock, caplog):
    """Whoever waits for all calls so far goes on, and so does the watching."""

    def fail(seconds):
        raise ValueError("no room")

    watcher.watch(Call(0.0, 0.1, [DonatedArray()], fail))
    assert watcher.wait(10)
    assert "could not be recorded" in caplog.text
    assert seconds_of(watcher, [(5.0, 5.1, [Array(clock, 6.0)])]) == [1.0]
