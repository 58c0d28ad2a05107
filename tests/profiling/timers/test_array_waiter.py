"""The thread that waits for arrays, so that the loop does not have to."""

import gc
import threading
import weakref

import pytest

from trackside.clock import ManualClock
from trackside.profiling.timers.array_waiter import NUM_SEEN_FIRST, PAUSE_S, ArrayWaiter
from trackside.profiling.timers.call_durations import Call, CallSeries


class Array:
    """An array that is computed at a given time of the clock. Counts how often it was waited for."""

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
    """An array that is computed when the test says so."""

    def __init__(self):
        self.is_there = threading.Event()

    def block_until_ready(self):
        assert self.is_there.wait(300)

    def is_ready(self):
        return self.is_there.is_set()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def waiter(clock):
    waiter = ArrayWaiter(clock)
    yield waiter
    waiter.stop()


class Taken(list):
    """What calls were said to take.

    Args:
        num_expected: How many calls there are.
    """

    def __init__(self, num_expected=0):
        super().__init__()
        self.is_complete = threading.Event()
        self._num_expected = num_expected

    def record(self, seconds, num_calls):
        self.extend([seconds] * num_calls)
        if len(self) >= self._num_expected:
            self.is_complete.set()


def seconds_of(waiter, calls):
    """What calls took, in order; each as (start, returned, arrays)."""
    taken = Taken()
    for start, returned, arrays in calls:
        waiter.watch(Call(start, returned, arrays, taken.record))
    assert waiter.wait(300)
    return taken


def test_a_call_takes_until_its_arrays_are_computed(waiter, clock):
    """Not only until it returns."""
    assert seconds_of(waiter, [(1.0, 1.1, [Array(clock, 3.0), Array(clock, 6.0)])]) == [5.0]


def test_calls_that_queue_are_not_counted_twice(waiter, clock):
    """Three calls made at once that take two seconds each on the device take two seconds each."""
    calls = [(0.0, 0.1, [Array(clock, 2.0)]), (0.1, 0.2, [Array(clock, 4.0)]), (0.2, 0.3, [Array(clock, 6.0)])]
    assert seconds_of(waiter, calls) == pytest.approx([2.0, 2.0, 2.0])


def test_calls_whose_arrays_were_donated_share_the_time(waiter, clock):
    """Up to the next completion that can be seen; nothing is lost and nothing is counted twice."""
    calls = [(0.0, 0.1, [DonatedArray()]), (0.1, 0.2, [DonatedArray()]), (0.2, 0.3, [Array(clock, 6.0)])]
    assert seconds_of(waiter, calls) == [2.0, 2.0, 2.0]


def test_a_call_of_which_nothing_is_left_counts_when_it_is_asked_for(waiter, clock):
    """Up to then: a long step whose arrays were all donated may still be computing."""
    taken = Taken()
    waiter.watch(Call(0.0, 0.1, [DonatedArray()], taken.record, CallSeries()))
    clock.advance(2.0)
    assert waiter.wait(300)
    assert taken == [2.0]


def test_one_array_that_is_left_is_enough(waiter, clock):
    """When only some were donated, the others show when the call was complete."""
    assert seconds_of(waiter, [(0.0, 0.1, [DonatedArray(), Array(clock, 3.0)])]) == [3.0]


def test_a_donated_array_is_reported(waiter):
    """So that another array is chosen for the next call."""
    reported = []
    series = CallSeries(on_lost=lambda: reported.append(True))
    waiter.watch(Call(0.0, 0.1, [DonatedArray()], Taken().record, series))
    assert waiter.wait(300)
    assert reported == [True]


def test_arrays_are_released_when_they_are_computed(waiter, clock):
    """A call that was recorded keeps no memory of the device."""
    call = Call(0.0, 0.1, [Array(clock, 1.0)], Taken().record)
    waiter.watch(call)
    waiter.wait(300)
    assert call.arrays == ()


def test_watching_does_not_wait(waiter):
    """The caller continues while an array is still being computed."""
    array, taken = HeldArray(), Taken()
    waiter.watch(Call(0.0, 0.1, [array], taken.record))
    assert taken == []
    assert not waiter.wait(0.01)
    array.is_there.set()
    assert waiter.wait(300)
    assert len(taken) == 1


def test_a_record_that_fails_does_not_end_the_watching(waiter, clock, caplog):
    """The next call is recorded."""
    waiter.watch(Call(0.0, 0.1, [Array(clock, 1.0)], lambda seconds, num_calls: 1 / 0))
    assert seconds_of(waiter, [(2.0, 2.1, [Array(clock, 3.0)])]) == [1.0]
    assert "could not be recorded" in caplog.text


def test_it_resumes_after_being_stopped(waiter, clock):
    """Stopping waits for what was there; a later call starts it again."""
    assert seconds_of(waiter, [(0.0, 0.1, [Array(clock, 1.0)])]) == [1.0]
    waiter.stop()
    assert seconds_of(waiter, [(2.0, 2.1, [Array(clock, 3.0)])]) == [1.0]


def test_calls_from_before_a_reset_do_not_count(waiter, clock):
    """A call that compiles and is still running at a reset is not part of what is measured from then on."""
    late, taken = HeldArray(), Taken()
    waiter.watch(Call(0.0, 0.1, [late], taken.record))
    clock.advance(1.0)
    waiter.forget()
    late.is_there.set()
    waiter.watch(Call(2.0, 2.1, [Array(clock, 3.0)], taken.record))
    waiter.wait(300)
    assert taken == [1.0]


def test_a_record_that_fails_during_a_wait(waiter, clock, caplog):
    """The wait for all calls so far returns, and watching continues."""

    def fail(seconds, num_calls):
        raise ValueError("no room")

    waiter.watch(Call(0.0, 0.1, [DonatedArray()], fail))
    assert waiter.wait(300)
    assert "could not be recorded" in caplog.text
    assert seconds_of(waiter, [(5.0, 5.1, [Array(clock, 6.0)])]) == [1.0]


class ShortCalls:
    """Calls of one function, all made at once, which take the device a fifth of the waiter's pause each."""

    def __init__(self, clock):
        self._clock = clock
        self.seconds = PAUSE_S / 5
        self.series = CallSeries()
        self.taken = Taken()
        self.arrays = []

    def watch(self, waiter, num_calls):
        for _ in range(num_calls):
            self.arrays.append(Array(self._clock, self.seconds * (len(self.arrays) + 1)))
            waiter.watch(Call(0.0, 0.0, self.arrays[-1:], self.taken.record, self.series))

    @property
    def num_waits(self):
        return sum(array.num_waits for array in self.arrays)


def test_short_calls_in_a_row_are_counted_by_some_of_them(waiter, clock):
    """After the first ones, one in five is waited for, and together they take what they took."""
    calls = ShortCalls(clock)
    calls.watch(waiter, NUM_SEEN_FIRST)
    assert waiter.wait(300)
    assert calls.num_waits == NUM_SEEN_FIRST
    calls.watch(waiter, 50)
    assert waiter.wait(300)
    assert len(calls.taken) == NUM_SEEN_FIRST + 50
    assert sum(calls.taken) == pytest.approx(calls.seconds * (NUM_SEEN_FIRST + 50))
    assert calls.num_waits < NUM_SEEN_FIRST + 25


def test_calls_between_those_of_another_function_are_each_watched(waiter, clock):
    """What one function took is not counted by what another one took."""
    calls, own, other = ShortCalls(clock), [], Taken()
    calls.watch(waiter, 2 * NUM_SEEN_FIRST)
    assert waiter.wait(300)
    ready_s = clock.now()
    for _ in range(10):
        ready_s += 1.0
        waiter.watch(Call(0.0, 0.0, [Array(clock, ready_s)], other.record))
        ready_s += calls.seconds
        own.append(Array(clock, ready_s))
        waiter.watch(Call(0.0, 0.0, own[-1:], calls.taken.record, calls.series))
    assert waiter.wait(300)
    assert other == pytest.approx([1.0] * 10)
    assert calls.taken[-10:] == pytest.approx([calls.seconds] * 10)
    assert [array.num_waits for array in own] == [1] * 10


def test_a_call_with_a_callback_is_watched_by_itself(waiter, clock):
    """Also among short calls of one function: the callback comes when that call is complete."""
    calls, seen = ShortCalls(clock), []
    calls.watch(waiter, 2 * NUM_SEEN_FIRST)
    array = Array(clock, clock.now() + 10.0)
    call = Call(clock.now(), clock.now(), [array], calls.taken.record, calls.series)
    call.on_seen = lambda: seen.append(array.num_waits)
    waiter.watch(call)
    assert waiter.wait(300)
    assert seen == [1]


def test_large_arrays_are_not_kept_during_a_pause(waiter, clock):
    """A function that returns nothing small is watched at each call: its memory is needed."""
    taken, series, arrays = Taken(), CallSeries(), []
    for index in range(2 * NUM_SEEN_FIRST):
        array = Array(clock, (index + 1) * 1e-3)
        array.nbytes = 1 << 30
        arrays.append(array)
        waiter.watch(Call(index * 1e-3, index * 1e-3, [array], taken.record, series))
    assert waiter.wait(300)
    assert [array.num_waits for array in arrays] == [1] * (2 * NUM_SEEN_FIRST)


def ready_calls(clock, taken, series, num_calls):
    """Calls that are complete when they return, with pauses in between."""
    for _ in range(num_calls):
        start_s = clock.now()
        clock.advance(1e-3)
        yield Call(start_s, clock.now(), [Array(clock, clock.now())], taken.record, series, is_after_pause=True)
        clock.advance(1e-3)


def test_calls_that_are_complete_at_once_are_counted_soon(waiter, clock):
    """Even if no summary is asked for and no other call comes."""
    taken = Taken(num_expected=3 * NUM_SEEN_FIRST)
    for call in ready_calls(clock, taken, CallSeries(), 3 * NUM_SEEN_FIRST):
        waiter.watch(call)
    assert taken.is_complete.wait(300)
    assert len(taken) == 3 * NUM_SEEN_FIRST


def test_callbacks_come_for_calls_that_were_complete_at_once(waiter, clock):
    """However early a call was complete."""
    seen = []
    for call in ready_calls(clock, Taken(), CallSeries(), 3 * NUM_SEEN_FIRST):
        call.on_seen = lambda: seen.append(True)
        waiter.watch(call)
    assert waiter.wait(300)
    assert len(seen) == 3 * NUM_SEEN_FIRST


def test_stopping_counts_what_was_left_open(waiter, clock):
    """No call is lost by the end of the thread."""
    taken = Taken()
    for call in ready_calls(clock, taken, CallSeries(), 3 * NUM_SEEN_FIRST):
        waiter.watch(call)
    waiter.stop()
    assert len(taken) == 3 * NUM_SEEN_FIRST


def test_nothing_of_a_call_is_kept_while_it_waits_for_the_next(waiter, clock):
    """Dropping what was profiled frees its memory."""
    taken = Taken()
    reference = weakref.ref(taken)
    waiter.watch(Call(0.0, 0.1, [Array(clock, 1.0)], taken.record, CallSeries()))
    assert waiter.wait(300)
    del taken
    gc.collect()
    assert reference() is None
