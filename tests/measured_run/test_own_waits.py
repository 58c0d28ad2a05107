"""How long a loop's own code has waited for the device, from what is known of its calls."""

import math

import pytest

from trackside.clock import ManualClock
from trackside.measured_run.host_time import HostTime
from trackside.measured_run.own_waits import waited_after
from trackside.profiling.call_record import CallRecord
from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import LOGGING, OTHER


def record(dispatched_s: float, completed_s: float, before: list[tuple[str, float]]) -> CallRecord:
    """A call that returned and completed at these times."""
    start_s = before[-1][1] if before else 0.0
    call = CallRecord(1, 1, 0, 1, start_s, start_s, start_s, start_s, dispatched_s, False, False, None, None)
    call.before, call.seen_s, call.completed_s = before, completed_s, completed_s
    return call


@pytest.mark.parametrize(
    ("until_s", "part", "waited_s"),
    [(0.0101, OTHER, 0.009), (0.03, OTHER, 0.0), (0.005, OTHER, 0.0), (0.0101, LOGGING, 0.0)],
    ids=["goes on when it completes", "much later", "before", "another part"],
)
def test_a_wait_for_the_device_is_recognized(until_s: float, part: str, waited_s: float) -> None:
    """Code that moves on just when a call completes has waited for it; any other has not."""
    call, following = record(0.001, 0.01, []), record(0.04, 0.05, [(part, until_s), (OTHER, 0.035)])
    assert waited_after(call, following) == pytest.approx(waited_s)


@pytest.mark.parametrize(
    ("until_s", "computed_s", "late_s", "waited_s"),
    [
        (0.0111, 0.0001, 0.0, 0.01),
        (0.0111, 0.005, 0.0, 0.0051),
        (0.016, 0.005, 0.0, 0.01),
        (0.031, 0.03, 0.0, 0.0),
        (0.031, 0.0001, 0.0, 0.0),
        (0.006, 0.005, 0.0, 0.0),
        (0.015, 0.0001, 0.004, 0.0139),
        (0.031, 0.01, 0.02, 0.0),
    ],
    ids=[
        "reads the loss",
        "computes, then reads the loss",
        "reads the loss, then computes",
        "computes for longer than the call",
        "sleeps for longer than the call",
        "computes for less time than the call",
        "reads the loss and wakes up late",
        "computes where others have the cores",
    ],
)
def test_computing_is_no_waiting(until_s: float, computed_s: float, late_s: float, waited_s: float) -> None:
    """Of the time until the call completes, what its thread has computed was no wait, before the wait or after it."""
    call, following = record(0.001, 0.011, []), record(0.04, 0.05, [(OTHER, until_s)])
    call.host_cpu_s, call.host_late_s = computed_s, late_s
    assert waited_after(call, following) == pytest.approx(waited_s)


@pytest.mark.parametrize(
    ("until_s", "computed_s", "waited_s"),
    [(0.0111, 0.0001, 0.01), (0.005, 0.0001, 0.0), (0.015, 0.0001, 0.0), (0.0111, 0.01, 0.0), (0.0211, 0.0001, 0.02)],
    ids=["reads the loss before", "moves on sooner", "sleeps for longer", "computes", "reads the last loss"],
)
def test_a_wait_for_the_call_before_the_last_is_recognized(until_s: float, computed_s: float, waited_s: float) -> None:
    """A loop may read each loss one step later, so that the device always has work: that is a wait all the same."""
    behind, call, following = record(0.0, 0.011, []), record(0.001, 0.021, []), record(0.04, 0.05, [(OTHER, until_s)])
    call.host_cpu_s = computed_s
    assert waited_after(call, following, behind) == pytest.approx(waited_s, abs=2e-4)


def test_computing_is_noted_up_to_what_is_known_next() -> None:
    """What a thread computes after a call ends with the next part that it enters."""
    computed, call = iter((1.0, 1.25)), record(0.0, 0.01, [])
    host = HostTime(Ledger(ManualClock()), ManualClock(), lambda: next(computed))
    host.watch_computing(call)
    assert math.isnan(call.host_cpu_s)
    host.enter("augment")
    host.enter(OTHER)
    assert call.host_cpu_s == 0.25
