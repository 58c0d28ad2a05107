"""The thread that waits for arrays in the loop's place."""

import gc
import threading
import time
import weakref

import pytest

from trackside.clock import ManualClock
from trackside.profiling.timers.array_waiter import NUM_SEEN_FIRST, PAUSE_S, ArrayWaiter
from trackside.profiling.timers.call_durations import Call, CallSeries


class Array:
    """An array that is there when it is told to be, at a time of the clock. Counts how often it was waited for."""

    def __init__(self, clock, ready_at):
        self._clock = clock
        self._ready_at = ready_at
        self.num_waits = 0

    def block_until_ready(self):
        self.num_waits += 1
        self._clock.advance(max(self._ready_at - self._clock.now(), 0.0))

    def is_ready(self):
        return self._clock.now() >= self._ready_at


class DonatedArray:
    def block_until_ready(self):
        raise RuntimeError("Array has been deleted")

    is_ready = block_until_ready


class HeldArray:
    """An array that is there when the test says so."""

    def __init__(self):
        self.is_there = threading.Event()

    def block_until_ready(self):
        assert self.is_there.wait(10)

    def is_ready(self):
        return self.is_there.is_set()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def watcher(clock):
    watcher = ArrayWaiter(clock)
    yield watcher
    watcher.stop()


class Taken(list):
    """What calls were said to take."""

    def record(self, seconds, num_calls):
        self.extend([seconds] * num_calls)


def seconds_of(watcher, calls):
    """What calls took, in order; each as (start, returned, arrays)."""
    taken = Taken()
    for start, returned, arrays in calls:
        watcher.watch(Call(start, returned, arrays, taken.record))
    assert watcher.wait(10)
    return taken


def test_a_call_takes_until_its_arrays_are_there(watcher, clock):
    """Not only until it returns."""
    assert seconds_of(watcher, [(1.0, 1.1, [Array(clock, 3.0), Array(clock, 6.0)])]) == [5.0]


def test_calls_that_queue_are_not_counted_twice(watcher, clock):
    """Three calls made at once that take two seconds each on the device take two seconds each."""
    calls = [(0.0, 0.1, [Array(clock, 2.0)]), (0.1, 0.2, [Array(clock, 4.0)]), (0.2, 0.3, [Array(clock, 6.0)])]
    assert seconds_of(watcher, calls) == pytest.approx([2.0, 2.0, 2.0])


def test_calls_whose_arrays_were_given_away_share_the_time(watcher, clock):
    """Up to the next completion that can be seen; nothing is lost and nothing is counted twice."""
    calls = [(0.0, 0.1, [DonatedArray()]), (0.1, 0.2, [DonatedArray()]), (0.2, 0.3, [Array(clock, 6.0)])]
    assert seconds_of(watcher, calls) == [2.0, 2.0, 2.0]


def test_a_call_of_which_nothing_is_left_is_not_over_because_nothing_follows(watcher, clock):
    """A long step that gave all away may still be computing: it counts when somebody waits, or with the next one."""
    taken = Taken()
    watcher.watch(Call(0.0, 0.1, [DonatedArray()], taken.record, CallSeries()))
    time.sleep(5 * PAUSE_S)
    assert taken == []
    clock.advance(2.0)
    assert watcher.wait(10)
    assert taken == [2.0]


def test_one_array_that_is_left_is_enough(watcher, clock):
    """Where only some were given away, the others tell."""
    assert seconds_of(watcher, [(0.0, 0.1, [DonatedArray(), Array(clock, 3.0)])]) == [3.0]


def test_whoever_gave_an_array_away_is_told(watcher):
    """So that another array is chosen for the next call."""
    told = []
    series = CallSeries(on_lost=lambda: told.append(True))
    watcher.watch(Call(0.0, 0.1, [DonatedArray()], Taken().record, series))
    assert watcher.wait(10)
    assert told == [True]


def test_arrays_are_let_go_when_they_are_there(watcher, clock):
    """A call that was recorded keeps no memory of the device."""
    call = Call(0.0, 0.1, [Array(clock, 1.0)], Taken().record)
    watcher.watch(call)
    watcher.wait(10)
    assert call.arrays == ()


def test_watching_does_not_wait(watcher):
    """The caller goes on while an array is not there."""
    array, taken = HeldArray(), Taken()
    watcher.watch(Call(0.0, 0.1, [array], taken.record))
    assert taken == []
    assert not watcher.wait(0.01)
    array.is_there.set()
    assert watcher.wait(10)
    assert len(taken) == 1


def test_a_record_that_fails_does_not_end_the_watching(watcher, clock, caplog):
    """The next call is recorded."""
    watcher.watch(Call(0.0, 0.1, [Array(clock, 1.0)], lambda seconds, num_calls: 1 / 0))
    assert seconds_of(watcher, [(2.0, 2.1, [Array(clock, 3.0)])]) == [1.0]
    assert "could not be recorded" in caplog.text


def test_it_goes_on_after_being_stopped(watcher, clock):
    """Stopping waits for what was there; a later call starts it again."""
    assert seconds_of(watcher, [(0.0, 0.1, [Array(clock, 1.0)])]) == [1.0]
    watcher.stop()
    assert seconds_of(watcher, [(2.0, 2.1, [Array(clock, 3.0)])]) == [1.0]


def test_calls_from_before_a_reset_do_not_count(watcher, clock):
    """A call that compiles and is still under way at a reset is no part of what is measured from then on."""
    late, taken = HeldArray(), Taken()
    watcher.watch(Call(0.0, 0.1, [late], taken.record))
    clock.advance(1.0)
    watcher.forget()
    late.is_there.set()
    watcher.watch(Call(2.0, 2.1, [Array(clock, 3.0)], taken.record))
    watcher.wait(10)
    assert taken == [1.0]


def test_record_that_fails_while_somebody_waits(watcher, clock, caplog):
    """Whoever waits for all calls so far goes on, and so does the watching."""

    def fail(seconds, num_calls):
        raise ValueError("no room")

    watcher.watch(Call(0.0, 0.1, [DonatedArray()], fail))
    assert watcher.wait(10)
    assert "could not be recorded" in caplog.text
    assert seconds_of(watcher, [(5.0, 5.1, [Array(clock, 6.0)])]) == [1.0]


class ShortCalls:
    """Calls of one function, all made at once, which take the device a fifth of the watcher's pause each."""

    def __init__(self, clock):
        self._clock = clock
        self.seconds = PAUSE_S / 5
        self.series = CallSeries()
        self.taken = Taken()
        self.arrays = []

    def watch(self, watcher, num_calls):
        for _ in range(num_calls):
            self.arrays.append(Array(self._clock, self.seconds * (len(self.arrays) + 1)))
            watcher.watch(Call(0.0, 0.0, self.arrays[-1:], self.taken.record, self.series))

    @property
    def num_waits(self):
        return sum(array.num_waits for array in self.arrays)


def test_short_calls_in_a_row_are_counted_by_some_of_them(watcher, clock):
    """After the first ones, one in five is waited for, and together they take what they took."""
    calls = ShortCalls(clock)
    calls.watch(watcher, NUM_SEEN_FIRST)
    assert watcher.wait(10)
    assert calls.num_waits == NUM_SEEN_FIRST
    calls.watch(watcher, 50)
    assert watcher.wait(10)
    assert len(calls.taken) == NUM_SEEN_FIRST + 50
    assert sum(calls.taken) == pytest.approx(calls.seconds * (NUM_SEEN_FIRST + 50))
    assert calls.num_waits < NUM_SEEN_FIRST + 25


def test_calls_between_those_of_another_function_are_each_looked_at(watcher, clock):
    """What one function took is not counted by what another one took."""
    calls, own, other = ShortCalls(clock), [], Taken()
    calls.watch(watcher, 2 * NUM_SEEN_FIRST)
    assert watcher.wait(10)
    ready_s = clock.now()
    for _ in range(10):
        ready_s += 1.0
        watcher.watch(Call(0.0, 0.0, [Array(clock, ready_s)], other.record))
        ready_s += calls.seconds
        own.append(Array(clock, ready_s))
        watcher.watch(Call(0.0, 0.0, own[-1:], calls.taken.record, calls.series))
    assert watcher.wait(10)
    assert other == pytest.approx([1.0] * 10)
    assert calls.taken[-10:] == pytest.approx([calls.seconds] * 10)
    assert [array.num_waits for array in own] == [1] * 10


def test_a_call_to_be_told_of_is_looked_at_by_itself(watcher, clock):
    """Also among short calls of one function: whoever waits for its end is told of it."""
    calls, seen = ShortCalls(clock), []
    calls.watch(watcher, 2 * NUM_SEEN_FIRST)
    array = Array(clock, clock.now() + 10.0)
    call = Call(clock.now(), clock.now(), [array], calls.taken.record, calls.series)
    call.on_seen = lambda: seen.append(array.num_waits)
    watcher.watch(call)
    assert watcher.wait(10)
    assert seen == [1]


def test_large_arrays_are_not_kept_while_it_looks_away(watcher, clock):
    """A function that returns nothing small is looked at each time: its memory is needed."""
    taken, series, arrays = Taken(), CallSeries(), []
    for index in range(2 * NUM_SEEN_FIRST):
        array = Array(clock, (index + 1) * 1e-3)
        array.nbytes = 1 << 30
        arrays.append(array)
        watcher.watch(Call(index * 1e-3, index * 1e-3, [array], taken.record, series))
    assert watcher.wait(10)
    assert [array.num_waits for array in arrays] == [1] * (2 * NUM_SEEN_FIRST)


def ready_calls(clock, taken, series, num_calls):
    """Calls that are complete when they return, with pauses in between."""
    for _ in range(num_calls):
        start_s = clock.now()
        clock.advance(1e-3)
        yield Call(start_s, clock.now(), [Array(clock, clock.now())], taken.record, series, is_after_pause=True)
        clock.advance(1e-3)


def test_calls_that_are_complete_at_once_are_counted_soon(watcher, clock):
    """Also if nobody asks and no other call comes: what is there is not left uncounted."""
    taken, series = Taken(), CallSeries()
    for call in ready_calls(clock, taken, series, 3 * NUM_SEEN_FIRST):
        watcher.watch(call)
    deadline = time.monotonic() + 10
    while len(taken) < 3 * NUM_SEEN_FIRST and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    assert len(taken) == 3 * NUM_SEEN_FIRST


def test_calls_that_were_complete_before_anybody_looked_are_told_of(watcher, clock):
    """Whoever waits for the end of a call among others is told of it, however early it was complete."""
    seen = []
    for call in ready_calls(clock, Taken(), CallSeries(), 3 * NUM_SEEN_FIRST):
        call.on_seen = lambda: seen.append(True)
        watcher.watch(call)
    assert watcher.wait(10)
    assert len(seen) == 3 * NUM_SEEN_FIRST


def test_stopping_counts_what_was_left_open(watcher, clock):
    """No call is lost by the end of the thread."""
    taken = Taken()
    for call in ready_calls(clock, taken, CallSeries(), 3 * NUM_SEEN_FIRST):
        watcher.watch(call)
    watcher.stop()
    assert len(taken) == 3 * NUM_SEEN_FIRST


def test_nothing_of_a_call_is_kept_while_it_waits_for_the_next(watcher, clock):
    """Who drops what he has profiled gets its memory back."""
    taken = Taken()
    reference = weakref.ref(taken)
    watcher.watch(Call(0.0, 0.1, [Array(clock, 1.0)], taken.record, CallSeries()))
    assert watcher.wait(10)
    del taken
    gc.collect()
    assert reference() is None
