"""The clocks: one that tests move by hand, and the machine's."""

import time

from trackside.clock import SYSTEM_CLOCK, ManualClock


def test_manual_clock_moves_only_by_hand():
    """Both readings of a manual clock stay until it is advanced, and then agree."""
    clock = ManualClock(start=5.0)
    assert (clock.now(), clock.now(), clock.timestamp()) == (5.0, 5.0, 5.0)
    clock.advance(1.5)
    assert (clock.now(), clock.timestamp()) == (6.5, 6.5)


def test_system_clock_reads_the_machine():
    """Durations come from the monotonic clock and timestamps from the wall clock."""
    for read, reference in ((SYSTEM_CLOCK.now, time.perf_counter), (SYSTEM_CLOCK.timestamp, time.time)):
        before = reference()
        assert before <= read() <= reference()
