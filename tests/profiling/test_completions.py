import threading

import pytest

from trackside.clock import ManualClock
from trackside.profiling import completions
from trackside.profiling.completions import Call, CompletionWatcher


class Array:
    """An array that is there when it is told to be, at a time of the clock."""

    def __init__(self, clock, ready_at):
        self._clock = clock
        self._ready_at = ready_at

    def is_ready(self):
        return self._clock.now() >= self._ready_at

    def block_until_ready(self):
        self._clock.advance(max(self._ready_at - self._clock.now(), 0.0))


class DonatedArray:
    def is_ready(self):
        raise RuntimeError("Array has been deleted")

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
        def is_ready(self):
            return is_there.is_set()

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


def short_calls(watcher, clock, seconds, gap):
    """Calls of a millisecond or so that the loop makes one after the other, with a pause after each."""
    taken = []
    record = taken.append
    for duration in seconds:
        follows_idle = watcher.look()
        start = clock.now()
        watcher.watch(Call(start, start + 1e-4, [Array(clock, start + duration)], record, follows_idle=follows_idle))
        watcher.wait_until_taken_up()
        clock.advance(max(start + duration + gap - clock.now(), 0.0))
    watcher.wait(10)
    return taken


class PatientWatcher(CompletionWatcher):
    """One whose thread has the time to see what it waits for, on a clock that does not pass by itself."""

    def wait_until_taken_up(self):
        if self._num_queued:
            reached = threading.Event()
            self._queue.put(reached)
            reached.wait(10)


@pytest.fixture
def patient(clock):
    watcher = PatientWatcher(clock)
    yield watcher
    watcher.stop()


def count_waits(monkeypatch):
    """Counts what the thread has to wait for."""
    waits = []
    wait = completions._wait
    monkeypatch.setattr(completions, "_wait", lambda arrays: waits.append(1) or wait(arrays))
    return waits


def test_of_short_calls_the_thread_waits_for_few(patient, clock, monkeypatch):
    """One every so often, and all are counted."""
    waits = count_waits(monkeypatch)
    taken = short_calls(patient, clock, [0.001] * 400, gap=0.001)
    assert len(taken) == 400
    assert 0.8 / completions.WATCH_EVERY_S <= len(waits) <= 1.2 * 0.8 / completions.WATCH_EVERY_S + 2


def test_idle_time_after_calls_that_nobody_saw_end_is_no_part_of_them(patient, clock):
    """A loop that is slower than its steps: each step takes what those take that were seen."""
    assert short_calls(patient, clock, [0.001] * 400, gap=0.004) == pytest.approx([0.001] * 400, rel=1e-6)


def test_calls_of_different_length_that_the_loop_waits_for_keep_their_time(patient, clock):
    """Whichever is seen, a short one is not said to be as long as a long one, nor the other way round."""
    seconds = [0.001, 0.004, 0.002, 0.008] * 100
    assert short_calls(patient, clock, seconds, gap=1e-5) == pytest.approx(seconds, rel=0.02)


def test_a_pause_is_no_part_of_the_call_before_it(patient, clock):
    """As a validation after an epoch's last step."""
    taken = []
    for _ in range(5):
        taken += short_calls(patient, clock, [0.001] * 20, gap=1e-5)
        clock.advance(30.0)
    assert sum(taken) == pytest.approx(0.1, rel=0.02)


def test_calls_in_a_queue_are_seen_by_the_loop(patient, clock, monkeypatch):
    """With another one in the queue the device is always busy: the loop sees each end, and the thread is not needed."""
    waits, taken = count_waits(monkeypatch), []
    record = taken.append
    arrays = [Array(clock, 0.002 * (index + 1)) for index in range(300)]
    for index, array in enumerate(arrays):
        if index >= 2:
            arrays[index - 2].block_until_ready()  # at most two are in flight
        follows_idle = patient.look()
        now = clock.now()
        patient.watch(Call(now, now, [array], record, follows_idle=follows_idle))
    patient.wait(10)
    assert len(waits) <= 3
    assert taken == pytest.approx([0.002] * 300)


def test_a_call_that_is_complete_when_it_returns_needs_no_thread(watcher, clock):
    """It took what the call took."""
    assert seconds_of(watcher, [(-1.0, -0.5, [Array(clock, -0.6)])]) == [0.5]
    assert watcher._thread is None


def test_calls_of_different_functions_do_not_share(patient, clock):
    """Two functions that take turns: each has its own time."""
    taken = {"short": [], "long": []}
    for _ in range(50):
        for name, seconds in (("short", 0.001), ("long", 0.005)):
            follows_idle, start = patient.look(), clock.now()
            array = Array(clock, start + seconds)
            patient.watch(Call(start, start, [array], taken[name].append, follows_idle=follows_idle))
            patient.wait_until_taken_up()
            clock.advance(0.001)
    patient.wait(10)
    assert taken["short"] == pytest.approx([0.001] * 50)
    assert taken["long"] == pytest.approx([0.005] * 50)
