"""The ledger: one part at a time, and all of them together are the whole."""

import contextlib
import gc
import threading

import pytest

from trackside.clock import ManualClock
from trackside.profiling.call_record import CallRecord
from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import (
    CHECKPOINTING,
    COMPILE,
    DATA_WAIT,
    DISPATCH,
    LOGGING,
    OTHER,
    SETUP,
    VALIDATION,
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
    """A call of one step with eight examples, which had to wait for room."""
    return CallRecord(1, 1, 8, 1, started_s, batch_s, placed_s, ready_s, dispatched_s, False, True, None, None)


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


def test_time_before_a_call_that_had_room_is_no_wait(ledger: Ledger, clock: ManualClock) -> None:
    """Between its batch and its call, a loop that is not ours does something of its own."""
    call = make_call(0, 1, 1, 4, 5)
    call.was_blocked = False
    clock.advance(5)
    ledger.add_calls([call])
    assert spent(ledger) == {DATA_WAIT: 1, OTHER: 3, DISPATCH: 1}


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


@pytest.mark.parametrize("compiling", [0, 1, 2, 3])
def test_compile_inside_a_call_is_taken_out_of_it(ledger: Ledger, clock: ManualClock, compiling: int) -> None:
    """Whichever stretch of a call something is compiled in, even several times, has only the rest of its time."""
    names = ["data_wait", "host_to_device", "device_wait", "dispatch"]
    clock.advance(0.25)
    times = [clock.now()]
    for index in range(4):
        clock.advance(1.0)
        for _ in range(2 if index == compiling else 0):
            ledger.begin_compiling()
            clock.advance(8.0)
            ledger.end_compiling()
            clock.advance(2.0)
        times.append(clock.now())
    ledger.add_calls([make_call(*times)])
    expected = {name: 5.0 if index == compiling else 1.0 for index, name in enumerate(names)}
    assert spent(ledger) == {**expected, COMPILE: 16.0, OTHER: 0.25}


def test_compile_between_calls_leaves_them_alone(ledger: Ledger, clock: ManualClock) -> None:
    """What is compiled in a validation is taken out of that, and of no call that comes later."""
    with ledger.spend(VALIDATION):
        clock.advance(1.0)
        ledger.begin_compiling()
        clock.advance(8.0)
        ledger.end_compiling()
    clock.advance(5.0)
    ledger.add_calls([make_call(9.0, 10.0, 10.0, 10.0, 14.0)])
    assert spent(ledger) == {VALIDATION: 1.0, COMPILE: 8.0, DATA_WAIT: 1.0, DISPATCH: 4.0}


def test_rows_written_while_compiling_count_for_themselves(ledger: Ledger, clock: ManualClock) -> None:
    """Code that is traced may log."""
    ledger.begin_compiling()
    clock.advance(1.0)
    with ledger.spend(LOGGING):
        clock.advance(2.0)
    clock.advance(4.0)
    ledger.end_compiling()
    clock.advance(8.0)
    assert spent(ledger) == {COMPILE: 5.0, LOGGING: 2.0, OTHER: 8.0}


def test_end_without_a_beginning_is_ignored(clock: ManualClock) -> None:
    """A ledger that is started while something compiles hears of the end only."""
    ledger = Ledger(clock)
    ledger.begin_compiling()
    with ledger:
        ledger.end_compiling()
        clock.advance(1.0)
    assert spent(ledger) == {OTHER: 1.0}


def test_time_while_stopped_is_outside(clock: ManualClock) -> None:
    """Between two starts time is spent outside: it is known, but neither a part nor in the wall."""
    ledger = Ledger(clock)
    clock.advance(1.0)
    with ledger:
        clock.advance(2.0)
    clock.advance(4.0)
    with ledger:
        clock.advance(8.0)
    totals = ledger.totals()
    assert (totals.wall_s, totals.outside_s) == (10.0, 4.0)
    clock.advance(12.0)
    ledger.reset()
    clock.advance(4.0)
    with ledger:
        pass
    assert ledger.totals().outside_s == 16.0  # also what came before the reset, since it was stopped


def test_reset_of_a_running_ledger(ledger: Ledger, clock: ManualClock) -> None:
    """What was not accounted for yet is forgotten too."""
    clock.advance(1.0)
    ledger.reset()
    clock.advance(2.0)
    assert ledger.totals().wall_s == 2.0


def test_blocks_of_other_threads_do_not_count(ledger: Ledger, clock: ManualClock) -> None:
    """A thread that evaluates while another one trains takes none of its time."""

    def evaluate() -> None:
        with ledger.spend(VALIDATION):
            clock.advance(1.0)

    thread = threading.Thread(target=evaluate)
    thread.start()
    thread.join()
    assert spent(ledger) == {OTHER: 1.0}


def test_reset_can_keep_what_was_not_written(clock: ManualClock) -> None:
    """What was spent after the totals that someone has is not lost."""
    ledger = Ledger(clock)
    with ledger:
        clock.advance(1.0)
        written = ledger.totals()
        with ledger.spend("callback/Saver"):
            clock.advance(2.0)
    clock.advance(4.0)
    with ledger:
        ledger.num_steps = 3
    ledger.reset(written)
    totals = ledger.totals()
    assert spent(ledger) == {"callback/Saver": 2.0}
    assert (totals.wall_s, totals.outside_s, totals.num_steps) == (2.0, 4.0, 0)


def test_what_comes_once_is_apart_from_steps() -> None:
    """Set-up, compiling and closing tools come once per process; an earlier version's ledger has no set-up."""
    parts = {SETUP: 1.0, COMPILE: 2.0, "drain/Tool": 4.0, DISPATCH: 8.0, "callback/Saver": 16.0}
    totals = LedgerTotals(31.0, parts)
    assert (totals.once_s, totals.has_set_up) == (7.0, True)
    assert not LedgerTotals(8.0, {DISPATCH: 8.0}).has_set_up


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
    totals = LedgerTotals(3.0, {DISPATCH: 3.0}, 2, 16, 0, 0.1, 2.0, 1.0, {DATA_WAIT: 1.0}, 0.5, 60.0, 0.8, 1.5)
    assert LedgerTotals.from_dict(totals.to_dict()) == totals
    assert totals.idle_share == pytest.approx(1 / 3)
    assert totals.share(DISPATCH) == 1.0


def test_interval_of_the_idle_share() -> None:
    """It is between the shares of the limits, and of a row without limits, as earlier versions wrote it, not known."""
    plain = {"wall_s": 4.0, "parts": {}, "device_busy_s": 3.0, "device_idle_s": 1.0}
    assert LedgerTotals.from_dict(plain).idle_share_interval is None
    limits = {"device_idle_low_s": 0.8, "device_idle_high_s": 9.0}
    totals = LedgerTotals.from_dict({**plain, **limits})
    assert totals.idle_share_interval == pytest.approx((0.2, 1.0))
    assert totals.since(totals).device_idle_high_s == 0.0


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


def test_a_measured_peak_gives_utilisation_a_range() -> None:
    """The range is that of the time at the peak, over the same time in use; none without a spread."""
    totals = LedgerTotals(4.0, {DISPATCH: 4.0}, num_steps=2, at_peak_s=1.0, at_peak_range_s=(0.8, 1.2))
    assert totals.mfu_range == pytest.approx((0.2, 0.3))
    assert LedgerTotals.from_dict(totals.to_dict()) == totals
    assert LedgerTotals(4.0, {DISPATCH: 4.0}, at_peak_s=1.0).mfu_range is None
    later = LedgerTotals(8.0, {DISPATCH: 8.0}, num_steps=4, at_peak_s=2.0, at_peak_range_s=(1.6, 2.4))
    assert later.since(totals).mfu_range == pytest.approx((0.2, 0.3))


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


@pytest.mark.parametrize(("part", "counts"), [(LOGGING, True), (COMPILE, False), (SETUP, False)])
def test_garbage_of_what_comes_once_is_left_out(part: str, counts: bool) -> None:
    """Tracing makes garbage that says nothing about the steps."""
    ledger = Ledger()
    with ledger, ledger.spend(part):
        gc.collect()
    assert (ledger.totals().gc_s > 0) == counts


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


def test_long_stretches_are_remembered(ledger: Ledger, clock: ManualClock) -> None:
    """The longest of each part, as long as nothing interrupts it; short ones are not worth it."""
    for delay_s in (0.05, 2.0, 1.0):
        with ledger.spend("callback/A"):
            clock.advance(delay_s)
            with ledger.spend("checkpointing"):
                clock.advance(0.01)
            clock.advance(0.5)
    assert ledger.longest_stretches() == pytest.approx({"callback/A": 2.0})
    ledger.reset()
    assert ledger.longest_stretches() == {}
