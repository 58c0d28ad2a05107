"""The ledger: one part at a time, and all of them together are the whole."""

import contextlib
import gc

import pytest

from trackside.clock import ManualClock
from trackside.profiling.ledger import DATA_WAIT, DISPATCH, LOGGING, OTHER, VALIDATION, Ledger, LedgerTotals


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger(clock: ManualClock) -> Ledger:
    ledger = Ledger(clock)
    ledger.start()
    yield ledger
    ledger.stop()


def spent(ledger: Ledger) -> dict[str, float]:
    """The parts that have any time."""
    return {name: seconds for name, seconds in ledger.totals().parts.items() if seconds}


def test_nested_parts_count_for_themselves(ledger: Ledger, clock: ManualClock) -> None:
    """The time of an inner block is taken out of the outer one."""
    with ledger.spend(VALIDATION):
        clock.advance(1.0)
        with ledger.spend(LOGGING):
            clock.advance(0.25)
        clock.advance(2.0)
    clock.advance(0.5)
    assert spent(ledger) == {VALIDATION: 3.0, LOGGING: 0.25, OTHER: 0.5}
    assert ledger.totals().wall_s == 3.75


def test_exception_does_not_lose_time(ledger: Ledger, clock: ManualClock) -> None:
    """A block that raises is counted, and the part around it goes on."""
    with contextlib.suppress(RuntimeError), ledger.spend(LOGGING):
        clock.advance(1.0)
        raise RuntimeError
    clock.advance(1.0)
    assert spent(ledger) == {LOGGING: 1.0, OTHER: 1.0}


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.010, 0.030])
@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_delay_in_a_call_appears_in_its_part(ledger: Ledger, clock: ManualClock, part: int, delay_s: float) -> None:
    """Of a call's four stretches, the one that takes longer shows it, and the others do not."""
    names = ["data_wait", "host_to_device", "device_wait", "dispatch"]
    for _ in range(10):
        times = [clock.now()]
        for index in range(4):
            clock.advance(0.001 + (delay_s if index == part else 0.0))
            times.append(clock.now())
        ledger.add_call(*times, num_steps=1)
    expected = {name: 0.01 + (10 * delay_s if index == part else 0.0) for index, name in enumerate(names)}
    assert spent(ledger) == pytest.approx(expected)
    assert ledger.num_steps == 10


def test_time_can_be_moved(ledger: Ledger, clock: ManualClock) -> None:
    """What turns out to be another part's is taken from one and given to the other."""
    ledger.add_call(0, 1, 1, 1, 5, num_steps=1)
    clock.advance(5)
    ledger.move(DISPATCH, "compile", 3)
    assert spent(ledger) == {DATA_WAIT: 1, DISPATCH: 1, "compile": 3}


def test_stopped_ledger_counts_nothing(clock: ManualClock) -> None:
    """Before it is started and after it is stopped, time does not count; started again, it goes on."""
    ledger = Ledger(clock)
    with ledger.spend(LOGGING):
        clock.advance(1.0)
    with ledger:
        clock.advance(2.0)
    clock.advance(4.0)
    with ledger:
        clock.advance(8.0)
    assert spent(ledger) == {OTHER: 10.0}


def test_totals_since_earlier_ones(ledger: Ledger, clock: ManualClock) -> None:
    """The difference of two moments is what happened between them."""
    with ledger.spend(LOGGING):
        clock.advance(1.0)
    earlier = ledger.totals()
    with ledger.spend(LOGGING):
        clock.advance(2.0)
    ledger.num_steps += 3
    recent = ledger.totals().since(earlier)
    assert (recent.wall_s, recent.parts[LOGGING], recent.num_steps) == (2.0, 2.0, 3)


def test_totals_come_back_from_plain_values() -> None:
    """What is written as JSON is read back equal."""
    totals = LedgerTotals(3.0, {DISPATCH: 3.0}, 2, 16, 0, 0.1, 2.0, 1.0, {DATA_WAIT: 1.0})
    assert LedgerTotals.from_dict(totals.to_dict()) == totals
    assert totals.idle_share == pytest.approx(1 / 3)
    assert totals.share(DISPATCH) == 1.0


def test_garbage_collection_is_measured() -> None:
    """Python's garbage collection shows beside the parts, as long as the ledger runs."""
    ledger = Ledger()
    with ledger:
        gc.collect()
    seconds = ledger.totals().gc_s
    gc.collect()
    assert ledger.totals().gc_s == seconds > 0
