"""The device's clock: how long it was busy and idle, how sure that is, and what the host did meanwhile."""

import pytest

from tests.profiling.played_device import BlindWatch
from tests.profiling.played_loop import PlayedLoop

STEP_S = 0.010


@pytest.fixture
def loop() -> PlayedLoop:
    return PlayedLoop()


def test_busy_device_does_not_idle(loop: PlayedLoop) -> None:
    """As long as there is always another call, the device is busy all the time."""
    for _ in range(100):
        loop.call(STEP_S, data_s=STEP_S / 4)
    loop.settle()
    device = loop.device_clock
    assert (device.idle_s, device.idle_low_s, device.idle_high_s) == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)
    assert device.busy_s == pytest.approx(100 * STEP_S)


@pytest.mark.parametrize("data_s", [0.012, 0.020, 0.040])
def test_idle_time_of_a_slow_loader(loop: PlayedLoop, data_s: float) -> None:
    """Where batches take longer than steps, the rest of their time is idle, for want of data."""
    for _ in range(101):
        loop.call(STEP_S, data_s=data_s)
    loop.settle()
    device = loop.device_clock
    assert device.idle_s == pytest.approx(100 * (data_s - STEP_S))
    assert device.idle_by_reason == pytest.approx({"data_wait": 100 * (data_s - STEP_S)})


def test_steps_of_different_lengths(loop: PlayedLoop) -> None:
    """Busy time is the sum of what each step took, and not what most of them take times their number."""
    for index in range(100):
        loop.call(STEP_S if index % 3 else 3 * STEP_S, data_s=4 * STEP_S)
    loop.settle()
    true_s = sum(end - begin for begin, end in zip(loop.device.begins_s, loop.device.ends_s, strict=True))
    assert loop.device_clock.busy_s == pytest.approx(true_s)


def test_idle_time_by_what_came_between(loop: PlayedLoop) -> None:
    """What the host did between two calls is reported as the reason."""
    for _ in range(51):
        loop.call(STEP_S, between_s=0.030, between="checkpointing")
    loop.settle()
    assert loop.device_clock.idle_by_reason == pytest.approx({"checkpointing": 50 * 0.020})


def test_idle_time_of_slow_dispatch(loop: PlayedLoop) -> None:
    """A slow call is idle time for want of dispatch; where in it the device began is not known."""
    for _ in range(51):
        loop.call(STEP_S, dispatch_s=0.030)
    loop.settle()
    device = loop.device_clock
    assert device.idle_by_reason == pytest.approx({"dispatch": 50 * 0.020})
    assert (device.idle_low_s, device.idle_high_s) == pytest.approx((0.0, 50 * 0.020))


def test_interval_holds_the_truth_of_what_nobody_saw() -> None:
    """Idle time that follows from estimates comes with an interval, in which the truth is."""
    loop = PlayedLoop(BlindWatch)
    for index in range(200):  # first the loop waits for the device, then the device for data
        loop.call(STEP_S * (0.6 + 0.2 * (index % 5)), data_s=0.0 if index < 100 else 2 * STEP_S)
    loop.settle()
    true_s = sum(
        max(begin - end, 0.0) for end, begin in zip(loop.device.ends_s, loop.device.begins_s[1:], strict=False)
    )
    device = loop.device_clock
    assert device.idle_low_s <= true_s <= device.idle_high_s


def test_pause_is_not_counted(loop: PlayedLoop) -> None:
    """The time between two calls that do not follow each other is neither busy nor idle."""
    loop.call(STEP_S)
    loop.settle()
    loop.clock.advance(100.0)
    loop.device_clock.pause()
    loop.call(STEP_S)
    loop.settle()
    assert loop.device_clock.idle_s == pytest.approx(0.0, abs=1e-9)
    assert loop.device_clock.busy_s == pytest.approx(2 * STEP_S)


def test_what_the_device_did_in_between_is_no_idle_time(loop: PlayedLoop) -> None:
    """Of the time between two calls, what a validation took is left out, and the checkpoint after it is idle time."""
    loop.call(STEP_S)
    loop.settle()
    loop.clock.advance(100.0)
    loop.device_clock.leave_out(100.0)
    loop.call(STEP_S, between_s=3.0, between="checkpointing")
    loop.settle()
    assert loop.device_clock.idle_by_reason == pytest.approx({"checkpointing": 3.0})
    assert loop.device_clock.busy_s == pytest.approx(2 * STEP_S)


def test_what_is_left_out_before_a_disturbed_call_is_not_left_out_later(loop: PlayedLoop) -> None:
    """A validation that a compile follows takes nothing from the idle time of later calls."""
    loop.call(STEP_S)
    loop.settle()
    loop.device_clock.leave_out(100.0)
    loop.call(STEP_S)
    loop._window[-1].is_disturbed = True
    loop.settle()
    assert not loop.device_clock._left_out
    loop.call(STEP_S)
    loop.call(STEP_S, data_s=3 * STEP_S)
    loop.settle()
    assert loop.device_clock.idle_by_reason == pytest.approx({"data_wait": 2 * STEP_S})


def test_disturbed_calls_are_not_counted(loop: PlayedLoop) -> None:
    """A call in which something was compiled is neither busy nor idle time, nor is what comes before and after it."""
    loop.call(STEP_S)
    loop.call(STEP_S, data_s=3 * STEP_S, dispatch_s=60.0)
    loop._window[-1].is_disturbed = True
    loop.call(STEP_S, data_s=3 * STEP_S)
    loop.settle()
    assert (loop.device_clock.idle_s, loop.device_clock.busy_s) == pytest.approx((0.0, 2 * STEP_S))


def test_nothing_is_known_at_first() -> None:
    """Before a call was seen to complete, the clock does not claim anything."""
    loop = PlayedLoop(BlindWatch)
    for _ in range(3):
        loop.call(STEP_S, data_s=2 * STEP_S)
    device = loop.device_clock
    assert not device.is_known
    assert (device.busy_s, device.idle_s) == (0.0, 0.0)
