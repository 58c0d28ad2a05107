"""A loop as the trainer's is, on a played device: what its calls are known to have taken, next to what they took."""

from collections import deque

from tests.profiling.played_device import ExactWatch, PlayedDevice
from trackside.clock import ManualClock
from trackside.profiling.call_ends import CallEnds
from trackside.profiling.call_record import CallRecord
from trackside.profiling.completion_watch import CompletionWatch
from trackside.profiling.device_clock import DeviceClock


class PlayedLoop:
    """Makes calls, keeps some in flight, and retires them."""

    def __init__(self, watch: type[CompletionWatch] = ExactWatch, max_inflight: int = 2, num_retired: int = 1):
        self.clock = ManualClock(1.0)
        self.device = PlayedDevice(self.clock)
        self.ends = CallEnds(max_inflight, self.clock, watch(self.clock))
        self.device_clock = DeviceClock(self.ends)
        self.retired: list[CallRecord] = []
        self._window: deque[CallRecord] = deque()
        self._max_inflight, self._num_retired = max_inflight, num_retired

    def call(
        self,
        step_s: float = 0.010,
        data_s: float = 0.0,
        dispatch_s: float = 0.0,
        between_s: float = 0.0,
        between: str = "other",
    ) -> None:
        """Get a batch, wait for room, make a call, and retire the oldest if they are too many."""
        clock, window = self.clock, self._window
        clock.advance(between_s)
        started_s = clock.now()
        clock.advance(data_s)
        batch_s = clock.now()
        at = len(window) - self._max_inflight
        was_blocked = at >= 0 and not window[at].report.is_ready()
        if was_blocked:
            self.ends.wait_for(window[at])
        ready_s = clock.now()
        was_idle = not was_blocked and (not window or window[-1].report.is_ready())
        clock.advance(dispatch_s)
        report = self.device.call(step_s)
        times_s = started_s, batch_s, batch_s, ready_s, clock.now()
        record = CallRecord(len(self.retired) + 1, 1, 1, 1, *times_s, was_idle, was_blocked, report, None)
        window.append(record)
        if ready_s > self.ends.next_watch_s and not was_blocked:
            self.ends.watch(record)
        self.device_clock.add_calls([record], between)
        if len(window) >= self._max_inflight + self._num_retired:
            self._retire(self._num_retired)

    def settle(self) -> None:
        """Wait for all calls, as at the end of an epoch."""
        self.ends.wait_for_all(self._window)
        self._retire(len(self._window))
        self.device_clock.update()

    def _retire(self, number: int) -> None:
        records = [self._window.popleft() for _ in range(number)]
        self.ends.conclude(records, self._window)
        self.retired += records

    @property
    def completed_s(self) -> list[float]:
        """When the retired calls are known to have completed."""
        return [record.completed_s for record in self.retired]
