"""The ledger: one part at a time, and all of them together are the whole."""

import contextlib
import gc

import pytest

from trackside.clock import ManualClock
from trackside.profiling.call_record import CallRecord
from trackside.profiling.ledger import (
    CHECKPOINTING,
    COMPILE,
    DATA_WAIT,
    DISPATCH,
    LOGGING,
    OTHER,
    VALIDATION,
    Ledger,
    LedgerTotals,
)

SPENT_PARTS = [LOGGING, CHECKPOINTING, VALIDATION, COMPILE, "callback/Saver"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger(clock: ManualClock) -> Ledger:
    ledger = Ledger(clock)
    ledger.start()
    yield ledger
    ledger.stop()


def make_call(started_s: float, batch_s: float, placed_s: float, ready_s: float, dispatched_s: float) -> CallRecord:
    """A call of one step with eight examples."""
    return CallRecord(1, 1, 8, 1, started_s, batch_s, placed_s, ready_s, dispatched_s, False, False, None, None)


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
    """A block that raises is counted, and the part around it resumes."""
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
        ledger.add_calls([make_call(*times)])
    expected = {name: 0.01 + (10 * delay_s if index == part else 0.0) for index, name in enumerate(names)}
    assert spent(ledger) == pytest.approx(expected)
    assert ledger.num_steps == 10


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.010, 0.030])
@pytest.mark.parametrize("part", SPENT_PARTS)
def test_delay_in_a_block_appears_in_its_part(ledger: Ledger, clock: ManualClock, part: str, delay_s: float) -> None:
    """Of several blocks in turn, the one that takes longer shows it, and the others do not."""
    for _ in range(10):
        for name in SPENT_PARTS:
            with ledger.spend(name):
                clock.advance(0.001 + (delay_s if name == part else 0.0))
    expected = {name: 0.01 + (10 * delay_s if name == part else 0.0) for name in SPENT_PARTS}
    assert spent(ledger) == pytest.approx(expected)


def test_time_can_be_moved(ledger: Ledger, clock: ManualClock) -> None:
    """What turns out to be another part's is taken from one and given to the other."""
    ledger.add_calls([make_call(0, 1, 1, 1, 5)])
    clock.advance(5)
    ledger.move(DISPATCH, "compile", 3)
    assert spent(ledger) == {DATA_WAIT: 1, DISPATCH: 1, "compile": 3}


def test_stopped_ledger_counts_nothing(clock: ManualClock) -> None:
    """Before it is started and after it is stopped, time does not count; started again, it resumes."""
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
    totals = LedgerTotals(3.0, {DISPATCH: 3.0}, 2, 16, 0, 0.1, 2.0, 1.0, {DATA_WAIT: 1.0}, 0.5)
    assert LedgerTotals.from_dict(totals.to_dict()) == totals
    assert totals.idle_share == pytest.approx(1 / 3)
    assert totals.share(DISPATCH) == 1.0


def test_throughput_is_per_second_of_wall() -> None:
    """Steps, examples and tokens, over the whole time; none where no time has passed."""
    totals = LedgerTotals(4.0, {DISPATCH: 1.0}, num_steps=2, num_samples=16, num_tokens=64)
    assert (totals.steps_per_second, totals.samples_per_second, totals.tokens_per_second) == (0.5, 4.0, 16.0)
    assert LedgerTotals(0.0, {}).steps_per_second == 0.0


def test_utilisation_is_of_steps_and_waiting_for_data() -> None:
    """What is neither, such as compilation, does not count against it; without a peak it is not known."""
    totals = LedgerTotals(9.0, {DISPATCH: 1.0, DATA_WAIT: 3.0, COMPILE: 5.0}, num_steps=2, at_peak_s=1.0)
    assert totals.mfu == 0.25
    assert LedgerTotals(9.0, totals.parts, num_steps=2).mfu is None
    assert LedgerTotals(5.0, {COMPILE: 5.0}, at_peak_s=0.0).mfu is None


def test_utilisation_of_what_came_since() -> None:
    """Of two moments, it is that of the steps between them, also where none was made before the first."""
    before = LedgerTotals(1.0, {COMPILE: 1.0})
    early = LedgerTotals(3.0, {COMPILE: 1.0, DISPATCH: 2.0}, num_steps=2, at_peak_s=0.2)
    late = LedgerTotals(4.0, {COMPILE: 1.0, DISPATCH: 3.0}, num_steps=7, at_peak_s=0.7)
    assert early.since(before).mfu == pytest.approx(0.1)
    assert late.since(early).mfu == pytest.approx(0.5)


def test_garbage_collection_is_measured() -> None:
    """Garbage collection is reported in addition to the parts, as long as the ledger runs."""
    ledger = Ledger()
    with ledger:
        gc.collect()
    seconds = ledger.totals().gc_s
    gc.collect()
    assert ledger.totals().gc_s == seconds > 0


def test_calls_that_wait_are_accounted_for_before_a_switch() -> None:
    """A loop only keeps its calls: they count before whatever begins next, and whoever started the ledger gets them."""
    clock, taken = ManualClock(), []

    def take(calls: list[CallRecord]) -> None:
        taken.extend(calls)
        ledger.add_calls(calls)

    ledger = Ledger(clock)
    ledger.start(take)
    ledger.calls.append(make_call(0.0, 1.0, 1.0, 1.0, 3.0))
    clock.advance(3.0)
    with ledger.spend("logging"):
        clock.advance(4.0)
    parts = ledger.totals().parts
    assert (parts["data_wait"], parts["dispatch"], parts["logging"], parts["other"]) == (1.0, 2.0, 4.0, 0.0)
    assert (len(taken), ledger.calls) == (1, [])


def test_reset_forgets_what_was_spent() -> None:
    """A ledger that serves a second training begins with nothing."""
    clock = ManualClock()
    ledger = Ledger(clock)
    with ledger:
        clock.advance(3.0)
    ledger.num_steps = 5
    ledger.reset()
    assert (ledger.totals().wall_s, ledger.totals().num_steps) == (0.0, 0)
