"""A clock for trainings in which one part takes its time: only these delays move it."""

from trackside.clock import ManualClock

DELAY_S = 0.1
NEVER_WAITS = 1000
"""With as many steps in flight, the loop of a short training does not wait for the device, which would be chance."""


class DelayClock(ManualClock):
    """Moves by delays only.

    It starts before 0. The device is sampled from 0 on, by a thread that reads the clock at a moment left to chance.
    """

    def __init__(self) -> None:
        super().__init__(start=-1e6)

    def timestamp(self) -> float:
        return 1e9 + self.now()

    def delay(self) -> None:
        self.advance(DELAY_S)
