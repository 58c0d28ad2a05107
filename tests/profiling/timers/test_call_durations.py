"""What calls took, worked out from the completions that were seen."""

import random

import pytest

from trackside.profiling.timers.call_durations import Call, CallDurations, CallSeries


@pytest.fixture
def durations():
    return CallDurations()


class Records:
    """Calls, and what they were said to take."""

    def __init__(self, series=None):
        self.taken = []
        self._series = series

    def call(self, start_s, returned_s, is_after_pause=False):
        return Call(start_s, returned_s, (), self._record, self._series, is_after_pause)

    def _record(self, seconds, num_calls):
        self.taken += [seconds] * num_calls


def test_idle_time_between_calls_is_not_part_of_them(durations):
    """A call that starts after the one before was complete is counted from its own start."""
    records = Records()
    durations.add_seen([records.call(0.0, 0.1)], 1.0)
    durations.add_seen([records.call(5.0, 5.1)], 7.0)
    assert records.taken == [1.0, 2.0]


def test_a_call_inside_of_another_is_part_of_it(durations):
    """The outer call is counted from its own start, not from the completion of the inner one."""
    records = Records()
    durations.add_seen([records.call(1.0, 1.5)], 4.0)
    durations.add_seen([records.call(0.0, 2.0)], 6.0)
    assert records.taken == [3.0, 6.0]


def test_calls_without_a_pause_share_the_time(durations):
    """Of three calls one after the other only the last was seen: together they take until then, from the first on."""
    records = Records()
    durations.add_seen([records.call(0.0, 0.1)], 2.0)
    durations.add_seen([records.call(0.1, 0.2), records.call(0.2, 0.3), records.call(0.3, 0.4)], 8.0)
    assert records.taken == [2.0, 2.0, 2.0, 2.0]


def test_calls_before_a_pause_count_as_those_after_it(durations):
    """Idle time between calls is not part of them; calls that were not seen count like those that were."""
    records = Records(CallSeries())
    durations.add_complete([records.call(0.0, 0.1), records.call(0.1, 0.2)], 5.0)
    durations.add_seen([records.call(10.0, 10.1, is_after_pause=True)], 11.5)
    assert records.taken == [1.5, 1.5, 1.5]


def test_calls_before_a_pause_do_not_take_longer_than_until_its_end(durations):
    """Where the ones seen took longer, those before the pause were over when it ended."""
    records = Records(CallSeries())
    durations.add_complete([records.call(0.0, 0.1)], 0.5)
    durations.add_seen([records.call(1.0, 1.1, is_after_pause=True)], 6.0)
    assert records.taken == [1.0, 5.0]


def test_calls_before_a_pause_take_at_least_until_they_returned(durations):
    """A function that computes before it returns is not said to be faster than that, whatever was seen before."""
    records = Records(CallSeries(mean_s=0.001))
    durations.add_complete([records.call(0.0, 3.0, is_after_pause=True)], 3.5)
    durations.close(4.0)
    assert records.taken == [3.0]


def test_calls_that_differ_count_by_their_average(durations):
    """Short and long calls with pauses in between together take what such calls take on average."""
    records = Records(CallSeries(mean_s=2.0))
    short, long = records.call(0.0, 0.1, is_after_pause=True), records.call(1.1, 1.2, is_after_pause=True)
    durations.add_complete([short, long], 4.0)
    durations.close(4.2)
    assert sum(records.taken) == pytest.approx(4.0)


def test_calls_that_nobody_saw_count_as_those_seen_before(durations):
    """They were complete some time before now; how long ago is not known, what such calls take is."""
    records = Records(CallSeries())
    durations.add_seen([records.call(0.0, 0.1)], 2.0)
    durations.add_complete([records.call(3.0, 3.1, is_after_pause=True)], 50.0)
    durations.close(60.0)
    assert records.taken == [2.0, 2.0]


def test_a_call_that_was_under_way_is_not_typical(durations):
    """A long call is more likely to be running when one is picked, so such a call does not count for the average."""
    records = Records(series := CallSeries(mean_s=1.0))
    durations.add_seen([records.call(0.0, 0.1)], 9.0, is_typical=False)
    assert records.taken == [9.0]
    assert series.mean_s == 1.0


def test_the_average_forgets(durations):
    """After some calls that took longer, calls count as these do."""
    records = Records(series := CallSeries(mean_s=1.0))
    for index in range(40):
        durations.add_seen([records.call(10.0 * index, 10.0 * index)], 10.0 * index + 3.0)
    assert series.mean_s == pytest.approx(3.0, rel=0.01)


def test_without_anything_to_go_by_they_last_until_now(durations):
    """Calls of which none was ever seen share the time up to when they were given up."""
    records = Records()
    for start_s in (0.0, 0.1):
        durations.add_lost(records.call(start_s, start_s + 0.1), 1.0)
    durations.close(6.0)
    assert records.taken == [3.0, 3.0]


def test_a_call_of_which_nothing_is_left_may_not_be_complete(durations):
    """So that it is not recorded before something shows that it is."""
    records = Records()
    durations.add_lost(records.call(0.0, 0.1), 1.0)
    assert (durations.has_complete, records.taken) == (False, [])


def test_calls_of_which_nothing_is_left_share_the_time_with_what_follows(durations):
    """Also with those of another function: their work may still be running when it is called."""
    first, second = Records(CallSeries()), Records(CallSeries())
    durations.add_lost(first.call(0.0, 0.1), 0.2)
    durations.add_seen([second.call(0.1, 0.2)], 4.0)
    assert (first.taken, second.taken) == ([2.0], [2.0])


def test_calls_that_are_complete_leave_the_time_of_others_alone(durations):
    """What one function took is not counted by what another one took."""
    first, second = Records(CallSeries(mean_s=1.0)), Records(CallSeries())
    durations.add_complete([first.call(0.0, 0.1)], 2.0)
    durations.add_seen([second.call(2.0, 2.1)], 9.0)
    assert (first.taken, second.taken) == ([1.0], [7.0])


def test_calls_from_before_a_reset_are_left_out(durations):
    """Of calls that share the time, only those that returned after the reset are recorded."""
    records = Records()
    durations.forgotten_s = 0.5
    durations.add_seen([records.call(0.0, 0.1), records.call(1.0, 1.1)], 4.0)
    assert records.taken == [2.0]


def test_arrays_are_let_go(durations):
    """A call that is not recorded yet keeps no memory of the device."""
    call = Records().call(0.0, 0.1)
    call.arrays = [object()]
    durations.add_lost(call, 1.0)
    assert call.arrays == ()


def _account_for_random_calls(seed):
    """Give random calls to `CallDurations` in random groups, some while others are running.

    Returns:
        How many calls there were, what they were said to take, and how much time passed.
    """
    chance = random.Random(seed)
    durations, records = CallDurations(), Records(CallSeries())
    waiting, completed_s, num_calls, now_s, looked_s = [], [0.0], chance.randint(1, 60), 0.0, 0.0
    for _ in range(num_calls):
        start_s = now_s + chance.choice([0.0, 0.0, 3 * chance.random()])
        now_s = start_s + 0.5 * chance.random()
        waiting.append(records.call(start_s, now_s, is_after_pause=completed_s[-1] <= start_s))
        completed_s.append(max(completed_s[-1], start_s) + 2 * chance.random())
        if chance.random() < 0.5:
            size = chance.randint(1, len(waiting))
            group, waiting = waiting[:size], waiting[size:]
            is_late = chance.choice([0.0, 4 * chance.random()])
            looked_s = max(looked_s, now_s, completed_s[-1 - len(waiting)]) + is_late
            _look(durations, group, looked_s, chance)
    looked_s = max(looked_s, completed_s[-1])
    durations.add_seen([*waiting, records.call(looked_s, looked_s)], looked_s)
    return num_calls + 1, records.taken, looked_s


def _look(durations, calls, now_s, chance):
    how = chance.choice(["seen", "complete", "lost"])
    if how == "seen":
        durations.add_seen(calls, now_s, chance.random() < 0.5)
    elif how == "complete":
        durations.add_complete(calls, now_s)
    else:
        for call in calls:
            durations.add_lost(call, now_s)
    if chance.random() < 0.2 and durations.has_complete:
        durations.close(now_s)


def test_calls_never_take_longer_than_the_time_that_passed():
    """However they were seen: together, late, not at all; and each counts once."""
    for seed in range(1000):
        num_calls, taken, passed_s = _account_for_random_calls(seed)
        assert len(taken) == num_calls, seed
        assert sum(taken) <= passed_s * (1 + 1e-9), seed
