"""When calls completed: what was seen, and what follows of the rest."""

import math
import random

import pytest

from tests.profiling.played_device import BlindWatch, ExactWatch, PlayedReport
from tests.profiling.played_loop import PlayedLoop
from trackside.clock import ManualClock
from trackside.profiling import call_ends
from trackside.profiling.call_record import CallRecord

STEP_S = 0.010


def learned(loop: PlayedLoop) -> int:
    """Let the loop learn how long a call takes, and say how many calls that took."""
    for _ in range(20):
        loop.call(STEP_S)
    loop.settle()
    return len(loop.retired)


@pytest.mark.parametrize("watch", [ExactWatch, BlindWatch])
@pytest.mark.parametrize("max_inflight", [1, 2, 4])
def test_calls_that_the_loop_waits_for(watch: type, max_inflight: int) -> None:
    """Where the device is what takes the time, each end is the device's own, whoever watches, spikes included."""
    loop = PlayedLoop(watch, max_inflight)
    for index in range(60):
        loop.call(5 * STEP_S if index % 17 == 0 else STEP_S, data_s=STEP_S / 5)
        if index % 20 == 19:
            loop.settle()
    assert loop.completed_s == pytest.approx(loop.device.ends_s, abs=1e-9)


@pytest.mark.parametrize("watch", [ExactWatch, BlindWatch])
@pytest.mark.parametrize("pause_s", [0.0, 50 * STEP_S])
def test_calls_that_are_heard_of_several_at_once(watch: type, pause_s: float) -> None:
    """They are waited for one by one, so each end is the device's own, also where it idled in between."""
    loop = PlayedLoop(watch, 16, 8)
    learned(loop)
    first = len(loop.retired)
    for index in range(100):
        is_longer = not pause_s and index % 3 == 0  # else nobody sees how long the steps before a pause take
        loop.call(2 * STEP_S if is_longer else STEP_S, between_s=0.0 if index % 40 else pause_s)
    loop.settle()
    assert loop.completed_s[first:] == pytest.approx(loop.device.ends_s[first:], abs=1e-9)


@pytest.mark.parametrize("max_inflight", [1, 2, 4])
def test_watched_calls_of_a_slow_loader(max_inflight: int) -> None:
    """Where data takes the time, each end is the device's own, also that of a slow step hidden in the wait for data."""
    loop = PlayedLoop(ExactWatch, max_inflight)
    for index in range(60):
        loop.call(3 * STEP_S if index % 17 == 0 else STEP_S, data_s=4 * STEP_S)
        if index % 20 == 19:
            loop.settle()
    assert loop.completed_s == pytest.approx(loop.device.ends_s, abs=1e-9)


@pytest.mark.parametrize("max_inflight", [2, 4])
def test_unseen_calls_take_what_such_calls_take(max_inflight: int) -> None:
    """Ends that nobody saw follow from the calls before, and not from when the loop came to look."""
    loop = PlayedLoop(BlindWatch, max_inflight)
    first = learned(loop)
    for index in range(60):
        loop.call(STEP_S, data_s=3 * STEP_S)
        if index % 20 == 19:
            loop.settle()
    assert loop.completed_s[first:] == pytest.approx(loop.device.ends_s[first:], abs=1e-9)


def test_unseen_calls_stay_within_what_is_known() -> None:
    """A call is not taken to complete before it was made, before the one in front, nor after it was found complete."""
    chance = random.Random(0)
    for _ in range(200):
        loop = PlayedLoop(chance.choice([BlindWatch, ExactWatch]), chance.randint(1, 4))
        for _ in range(chance.randint(1, 40)):
            loop.call(0.02 * chance.random(), 0.02 * chance.random(), 0.002 * chance.random(), 0.01 * chance.random())
            if chance.random() < 0.1:
                loop.settle()
        loop.settle()
        last_s = 0.0
        for record, done_s in zip(loop.retired, loop.device.ends_s, strict=True):
            assert max(record.dispatched_s, last_s) <= record.completed_s
            last_s = record.completed_s
            if record.seen_s == done_s:
                assert record.completed_s == done_s
        assert last_s <= loop.clock.now()


def test_nothing_is_known_of_the_first_calls() -> None:
    """Before any call was seen to complete, an end is the latest possible one, and says how far off it may be."""
    loop = PlayedLoop(BlindWatch)
    for _ in range(4):
        loop.call(STEP_S, data_s=4 * STEP_S)
    assert not loop.ends.is_known
    first, second = loop.retired
    assert first.completed_s == pytest.approx(second.ready_s)
    assert first.uncertainty_s == pytest.approx(4 * STEP_S)
    assert first.completed_s - first.uncertainty_s <= loop.device.ends_s[0] <= first.completed_s


def test_short_calls_are_watched_now_and_then() -> None:
    """Of calls that are close to each other few are watched, of others all: watching takes a few microseconds."""

    class Counting(ExactWatch):
        num_watched = 0

        def watch(self, call: object) -> None:
            type(self).num_watched += 1
            super().watch(call)

    loop = PlayedLoop(Counting)
    for _ in range(1000):
        loop.call(1e-4, data_s=2e-4)
    assert 1000 * 2e-4 / call_ends.SAMPLE_EVERY_S <= Counting.num_watched < 10
    Counting.num_watched = 0
    for _ in range(100):
        loop.call(1e-4, data_s=2e-3)
    assert Counting.num_watched > 95


def test_calls_that_are_done_when_they_return() -> None:
    """A call that computes before it returns, as short ones do on a CPU, has ended by then, and may begin at once."""
    loop = PlayedLoop(BlindWatch)
    for _ in range(3):
        loop.call(step_s=0.0, data_s=2e-3, dispatch_s=3e-3)
    record = loop.retired[0]
    assert (record.began_s, record.completed_s) == (record.ready_s, record.dispatched_s)
    assert record.uncertainty_s == pytest.approx(3e-3)


def queued_call(dispatched_s: float, seen_s: float | None = None, num_steps: int = 1) -> CallRecord:
    """A call that was made while the device was busy, and was found complete long after."""
    times = [dispatched_s] * 5
    call = CallRecord(1, num_steps, 0, 1, *times, False, False, None, None)
    call.found_s = 1.0
    if seen_s is not None:
        call.seen_s = seen_s
    return call


def test_calls_that_are_computed_side_by_side_do_not_take_no_time() -> None:
    """A call that was seen to end before the one in front of it says nothing of how long such calls take."""
    ends = call_ends.CallEnds(clock=ManualClock(), watch=BlindWatch(ManualClock()))
    for seen_s in (0.020, 0.015, 0.014, 0.013, 0.012):
        ends.conclude([queued_call(0.001, seen_s)], ())
    assert not ends.is_known
    ends.close()


def test_calls_between_two_that_were_seen_share_the_time() -> None:
    """Where few calls of a long queue are watched, the time from one of them to the next tells how long each takes."""
    ends = call_ends.CallEnds(clock=ManualClock(), watch=BlindWatch(ManualClock()))
    for index in range(1, 41):
        call = queued_call(0.0, index * STEP_S if index % 5 == 1 else None)
        call.found_s = (index + 3) * STEP_S
        ends.conclude([call], ())
    assert call.completed_s == pytest.approx(40 * STEP_S)
    ends.close()


@pytest.mark.parametrize(("part", "is_of_device"), [("other", True), ("data_wait", False)])
def test_a_long_stretch_among_short_calls_may_be_the_devices(part: str, is_of_device: bool) -> None:
    """Nobody watches calls that are close to each other, so that one among them may take long unseen."""
    ends = call_ends.CallEnds(clock=ManualClock(), watch=BlindWatch(ManualClock()))
    calls = [queued_call(index * 1e-4, (index + 1) * 1e-4) for index in range(20)]
    slow, following = queued_call(0.002), queued_call(0.042)
    following.was_idle, following.before = True, [(part, 0.042)]
    ends.conclude([*calls, slow, following], ())
    assert slow.completed_s == pytest.approx(0.042 if is_of_device else 0.0021)
    assert slow.uncertainty_s == pytest.approx(0.040, rel=0.01)
    ends.close()


def test_a_call_is_over_when_a_later_one_is_seen_to_be() -> None:
    """Calls complete in their order, so nobody has to have seen the first: that it was found late says less."""
    ends = call_ends.CallEnds(max_inflight=4096, clock=ManualClock(), watch=BlindWatch(ManualClock()))
    first, second = queued_call(0.0), queued_call(0.01, seen_s=0.03)
    ends.conclude([first, second, queued_call(0.02)], ())
    assert (first.completed_s, second.completed_s) == (0.03, 0.03)
    ends.close()


@pytest.mark.parametrize(("usual_gap_s", "num_watched"), [(1e-5, 1), (2e-3, 10)])
def test_a_pause_is_no_reason_to_watch_short_calls(usual_gap_s: float, num_watched: int) -> None:
    """Calls are all watched if they are far apart, and not because one of them came after a pause."""
    watched, clock = [], ManualClock()
    watch = BlindWatch(clock)
    watch.watch = watched.append
    ends = call_ends.CallEnds(clock=clock, watch=watch)
    times_s = [*(index * usual_gap_s for index in range(255)), 1.0]
    ends.conclude([queued_call(time_s, time_s) for time_s in times_s], ())
    for index in range(10):
        call = queued_call(1.0 + index * usual_gap_s)
        call.report = PlayedReport(clock, done_s=math.inf)
        if call.dispatched_s > ends.next_watch_s:
            ends.watch(call)
    assert len(watched) == num_watched
    ends.close()


@pytest.mark.parametrize(("noticed_s", "is_known"), [(0.004, True), (0.012, False)])
def test_calls_that_are_only_noticed_are_known_to_take_no_longer(noticed_s: float, is_known: bool) -> None:
    """Next to code that never pauses, calls are seen late. That they were over long before the next is known then."""
    ends = call_ends.CallEnds(clock=ManualClock(), watch=BlindWatch(ManualClock()))
    calls = [queued_call(index * 0.010) for index in range(9)]
    for call in calls:
        call.was_idle, call.found_s = True, call.dispatched_s + noticed_s
    ends.conclude(calls, ())
    assert ends.is_known == is_known
    if is_known:
        for call in calls[4:-1]:
            assert call.completed_s - call.uncertainty_s <= call.dispatched_s + 1e-9
            assert call.completed_s + call.uncertainty_s == pytest.approx(call.dispatched_s + noticed_s)
    ends.close()


@pytest.mark.parametrize(
    ("step_s", "num_pauses", "num_idle", "looks"),
    [
        pytest.param(2e-3, 0, 0, True, id="never pauses"),
        pytest.param(2e-3, 0, 1, False, id="idle once"),
        pytest.param(2e-3, 1, 0, False, id="reads a value once"),
        pytest.param(1e-4, 0, 0, False, id="short"),
        pytest.param(2e-2, 0, 0, False, id="long"),
    ],
)
def test_a_loop_that_runs_ahead_wakes_nobody_up(step_s: float, num_pauses: int, num_idle: int, looks: bool) -> None:
    """Where steps take milliseconds and neither loop nor device has waited lately, the thread looks by itself."""
    clock, looked_for = ManualClock(), []
    watch = BlindWatch(clock)
    watch.look_for = looked_for.append
    ends = call_ends.CallEnds(max_inflight=4096, clock=clock, watch=watch)
    ends.latest = lambda: None
    number = call_ends.MIN_AHEAD_CALLS
    calls = [queued_call(0.0, (index + 1) * step_s) for index in range(number + 1)]
    for call in calls[1 : 1 + num_idle]:
        call.was_idle = True
    for call in calls[1 : 1 + num_pauses]:
        call.before = [("other", 2 * call_ends.MIN_PAUSE_S)]
    ends.conclude(calls[:number], ())
    assert (looked_for, ends.next_watch_s == math.inf) == ([ends.latest] * looks, looks)
    paused = queued_call(0.0, (number + 2) * step_s)
    paused.before = [("other", 1.0)]
    ends.conclude([calls[number], paused], ())
    assert ends.next_watch_s < math.inf
    assert looked_for[-1:] == [None] * looks
    ends.close()
