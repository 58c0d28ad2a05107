"""The device's clock: how long it was busy and idle, and what the host did meanwhile."""

import pytest

from trackside.clock import ManualClock
from trackside.profiling.call_record import CallRecord
from trackside.profiling.device_clock import DeviceClock

STEP_S = 0.010


class Played:
    """A loop with one call in flight behind the one that is waited for, on a device whose steps take `STEP_S`."""

    def __init__(self, starts_when_called: bool = True):
        self.clock = ManualClock(1.0)
        self.device = DeviceClock(starts_when_called, max_inflight=2, clock=self.clock)
        self.done_s: list[float] = []

    def call(
        self, data_s: float = 0.0, dispatch_s: float = 0.0, between_s: float = 0.0, between: str = "other"
    ) -> None:
        clock = self.clock
        clock.advance(between_s)
        started_s = clock.now()
        clock.advance(data_s)
        batch_s = clock.now()
        was_idle = bool(self.done_s) and self.done_s[-1] <= batch_s
        was_blocked = len(self.done_s) > 1 and self.done_s[-2] > batch_s
        if was_blocked:
            clock.advance(self.done_s[-2] - batch_s)
        ready_s = clock.now()
        clock.advance(dispatch_s)
        times = started_s, batch_s, batch_s, ready_s, clock.now()
        call = CallRecord(1, 1, 1, 1, *times, was_idle, was_blocked, report=None, batch=None)
        self.device.add_calls([call], between)
        begins_s = ready_s if self.device._starts_when_called else clock.now()
        self.done_s.append(max(begins_s, self.done_s[-1] if self.done_s else 0.0) + STEP_S)

    def warm_up(self) -> None:
        """Let the clock learn how long a step takes."""
        for _ in range(40):
            self.call()
        self.device.busy_s = self.device.idle_s = 0.0
        self.device.idle_by_reason.clear()


@pytest.fixture
def played() -> Played:
    played = Played()
    played.warm_up()
    yield played
    played.device.close()


def test_busy_device_does_not_idle(played: Played) -> None:
    """As long as there is always another call, the device is busy all the time."""
    for _ in range(100):
        played.call(data_s=STEP_S / 4)
    assert played.device.idle_s == pytest.approx(0.0, abs=1e-9)
    assert played.device.busy_s == pytest.approx(100 * STEP_S)


@pytest.mark.parametrize("data_s", [0.012, 0.020, 0.040])
def test_idle_time_of_a_slow_loader(played: Played, data_s: float) -> None:
    """Where batches take longer than steps, the rest of their time is idle, for want of data."""
    for _ in range(100):
        played.call(data_s=data_s)
    assert played.device.idle_s == pytest.approx(100 * (data_s - STEP_S), rel=0.1)
    assert set(played.device.idle_by_reason) == {"data_wait"}


def test_idle_time_by_what_came_between(played: Played) -> None:
    """What the host did between two calls is reported as the reason."""
    for _ in range(50):
        played.call(between_s=0.030, between="checkpointing")
    assert played.device.idle_by_reason == pytest.approx({"checkpointing": 50 * 0.020}, rel=0.1)


def test_idle_time_of_slow_dispatch() -> None:
    """On a device that begins when a call has returned, a slow call is idle time for want of dispatch."""
    played = Played(starts_when_called=False)
    played.warm_up()
    for _ in range(50):
        played.call(dispatch_s=0.030)
    played.device.close()
    assert max(played.device.idle_by_reason, key=played.device.idle_by_reason.get) == "dispatch"


def test_pause_is_not_counted(played: Played) -> None:
    """The time between two calls that do not follow each other is neither busy nor idle."""
    played.call()
    idle_s = played.device.idle_s
    played.clock.advance(100.0)
    played.device.pause()
    played.call()
    assert played.device.idle_s == pytest.approx(idle_s, abs=1e-9)


def test_nothing_is_known_at_first() -> None:
    """Before a duration was seen, the clock does not claim anything."""
    device = DeviceClock(True, clock=ManualClock())
    assert not device.is_known
    assert (device.busy_s, device.idle_s) == (0.0, 0.0)
