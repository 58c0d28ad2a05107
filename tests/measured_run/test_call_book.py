"""What is told from the records of a loop's calls."""

import pytest

from trackside.measured_run.call_book import waited_for
from trackside.profiling.call_record import CallRecord
from trackside.profiling.ledger import LOGGING, OTHER


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
    assert waited_for(call, following) == pytest.approx(waited_s)
