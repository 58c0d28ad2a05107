import asyncio
import queue
import threading

import pytest

from trackside.clock import SYSTEM_CLOCK, ManualClock
from trackside.errors import ConfigError
from trackside.profiling.timers import host_timers
from trackside.profiling.timers.host_timers import MAX_OPERATIONS, OTHER_OPERATIONS, HostTimers


@pytest.fixture
def clock():
    return ManualClock(100.0)


@pytest.fixture
def timers(clock):
    return HostTimers(clock)


def found(timers, name):
    return timers.operation(name).summarise()


def test_a_pair_measures_the_time_between(timers, clock):
    """From start to end, by the clock given."""
    start = timers.start_timer("load")
    clock.advance(0.25)
    timers.end_timer("load", start)
    assert (found(timers, "load").count, found(timers, "load").total_s) == (1, 0.25)


def test_a_span_that_raises_is_counted(timers, clock):
    """The exception is raised, and the time is counted."""

    def load():
        with timers.time("load"):
            clock.advance(2.0)
            raise KeyError

    with pytest.raises(KeyError):
        load()
    assert (found(timers, "load").count, found(timers, "load").total_s) == (1, 2.0)


def test_a_call_is_timed(timers, clock):
    """Its result comes back, its time is counted, also if it raises, and not if it is an iterator that has ended."""

    def load(error=None):
        clock.advance(2.0)
        if error is not None:
            raise error
        return "batch"

    assert [timers.timed("load", load)() for _ in range(2)] == ["batch"] * 2
    with pytest.raises(KeyError):
        timers.timed("load", lambda: load(KeyError()))()
    with pytest.raises(StopIteration):
        timers.timed("load", lambda: load(StopIteration()))()
    assert (found(timers, "load").count, found(timers, "load").total_s) == (3, 6.0)


def test_a_timed_call_nests(timers, clock):
    """It may have others inside, and be inside of others."""

    def load():
        clock.advance(1.0)
        timers.timed("read", lambda: clock.advance(2.0))()

    with timers.time("step"):
        timers.timed("load", load)()
        clock.advance(4.0)
    totals = {name: (found(timers, name).total_s, found(timers, name).exclusive_s) for name in ("step", "load", "read")}
    assert totals == {"step": (7.0, 4.0), "load": (3.0, 1.0), "read": (2.0, 2.0)}


@pytest.mark.parametrize("was_on", [False, True])
def test_a_call_is_not_timed_while_off(timers, clock, was_on):
    """Switched off before or during the call, nothing is counted, and nothing stays open."""
    timers.enabled = was_on

    def load():
        timers.enabled = False
        clock.advance(1.0)

    timers.timed("load", load)()
    timers.enabled = True
    timers.timed("other", lambda: clock.advance(1.0))()
    assert (found(timers, "load").count, found(timers, "other").exclusive_s) == (0, 1.0)


def test_several_operations_are_timed_together(timers, clock):
    """Each has an equal part of the time; an enclosing timer loses all of it, and nothing that failed is counted."""

    def load(number, error=None):
        clock.advance(2.0)
        if error is not None:
            raise error
        return ["batch"] * number

    with timers.time("step"):
        assert timers.time_together("load", lambda: load(4)) == ["batch"] * 4
        clock.advance(1.0)
    assert timers.time_together("load", lambda: load(0)) == []
    with pytest.raises(KeyError):
        timers.time_together("load", lambda: load(1, KeyError()))
    load_times, step_times = found(timers, "load"), found(timers, "step")
    assert (load_times.count, load_times.total_s, load_times.max_s) == (4, 2.0, 0.5)
    assert (step_times.total_s, step_times.exclusive_s) == (3.0, 1.0)
    timers.enabled = False
    assert timers.time_together("load", lambda: load(2)) == ["batch"] * 2
    assert found(timers, "load").count == 4


def test_nested_timers_give_inclusive_and_exclusive_time(timers, clock):
    """Spans and pairs nest in each other: each level has its own time without that of the levels inside."""
    with timers.time("step"):
        clock.advance(1.0)
        start = timers.start_timer("forward")
        clock.advance(2.0)
        with timers.time("layer"):
            clock.advance(4.0)
        timers.end_timer("forward", start)
        with timers.time("layer"):
            clock.advance(8.0)
    totals = {
        name: (found(timers, name).total_s, found(timers, name).exclusive_s) for name in ("step", "forward", "layer")
    }
    assert totals == {"step": (15.0, 1.0), "forward": (6.0, 2.0), "layer": (12.0, 12.0)}


def test_an_operation_inside_of_itself_counts_each_level(timers, clock):
    """Recursion: the inclusive times add up, the exclusive time is the time that has passed."""
    with timers.time("tree"):
        clock.advance(1.0)
        with timers.time("tree"):
            clock.advance(2.0)
    assert (found(timers, "tree").count, found(timers, "tree").total_s, found(timers, "tree").exclusive_s) == (
        2,
        5.0,
        3.0,
    )


def test_ends_out_of_order_are_counted(timers, clock):
    """The outer of two pairs may end first; both have their time."""
    outer, _ = timers.start_timer("outer"), clock.advance(1.0)
    inner, _ = timers.start_timer("inner"), clock.advance(1.0)
    timers.end_timer("outer", outer)
    clock.advance(1.0)
    timers.end_timer("inner", inner)
    assert (found(timers, "outer").total_s, found(timers, "inner").total_s) == (2.0, 2.0)


def test_timers_that_overlap_are_not_inside_of_each_other(timers, clock):
    """One that began before another and ended before it takes nothing of the other's own time."""
    first = timers.start_timer("first")
    clock.advance(1.0)
    second = timers.start_timer("second")
    clock.advance(1.0)
    timers.end_timer("first", first)
    clock.advance(1.0)
    timers.end_timer("second", second)
    assert timers.operation("first").summarise().exclusive_s == 2.0
    assert timers.operation("second").summarise().exclusive_s == 2.0


def test_the_time_of_timers_that_overlap_counts_once(timers, clock):
    """What is around two that overlap has the time for itself in which neither was open."""
    outer = timers.start_timer("outer")
    clock.advance(1.0)
    first = timers.start_timer("first")
    clock.advance(1.0)
    second = timers.start_timer("second")
    clock.advance(3.0)
    timers.end_timer("first", first)
    clock.advance(1.0)
    timers.end_timer("second", second)
    clock.advance(4.0)
    timers.end_timer("outer", outer)
    assert timers.operation("outer").summarise().exclusive_s == 5.0


def test_timers_that_start_at_the_same_moment_are_nested_as_they_were_started(timers, clock):
    """The inner one ends first, also where both have the same start time."""
    with timers.time("outer"):
        with timers.time("inner"):
            clock.advance(3.0)
        clock.advance(2.0)
    assert timers.operation("outer").summarise().exclusive_s == 2.0


def test_a_timer_that_is_switched_off_meanwhile_is_closed(timers, clock):
    """What comes after it, once switched on again, is not inside of it."""
    start = timers.start_timer("first")
    timers.enabled = False
    timers.end_timer("first", start)
    timers.enabled = True
    with timers.time("second"):
        clock.advance(1.0)
    with pytest.raises(ConfigError, match="ended before"):
        timers.end_timer("first", start)


def test_what_was_inside_of_a_cancelled_timer_is_inside_of_what_is_around_it(timers, clock):
    """Cancelling takes away a name, not the time that others took."""
    with timers.time("outer"):
        start = timers.start_timer("cancelled")
        clock.advance(1.0)
        with timers.time("inner"):
            clock.advance(2.0)
        timers.cancel_timer(start)
        clock.advance(1.0)
    assert timers.operation("outer").summarise().exclusive_s == 2.0


def test_a_thread_that_ends_timers_of_another_does_not_disturb_it():
    """Blocks are timed while another thread ends what was started around them."""
    timers = HostTimers(SYSTEM_CLOCK)
    started, num_ended = queue.SimpleQueue(), []

    def end_all():
        while (start := started.get()) is not None:
            timers.end_timer("around", start)
            num_ended.append(1)

    thread = threading.Thread(target=end_all)
    thread.start()
    for _ in range(2000):
        started.put(timers.start_timer("around"))
        with timers.time("block"), timers.time("inner"):
            pass
    started.put(None)
    thread.join()
    assert len(num_ended) == 2000
    assert timers.operation("block").summarise().count == 2000


def test_a_start_that_was_never_ended_does_not_disturb_what_is_around_it(timers, clock):
    """As after an exception between start and end: the operation around it has its time, all its own."""
    with timers.time("step"):
        timers.start_timer("lost")
        clock.advance(1.0)
    with timers.time("step"):
        clock.advance(1.0)
    assert (found(timers, "step").total_s, found(timers, "step").exclusive_s) == (2.0, 2.0)


def test_starts_that_are_never_ended_do_not_fill_the_memory(timers):
    """However many there are, a bounded number is remembered."""
    for _ in range(host_timers._MAX_OPEN + 100):
        timers.start_timer("lost")
    assert len(timers._open.get()) == host_timers._MAX_OPEN


def test_a_timer_may_be_ended_by_another_thread(timers, clock):
    """Its time is counted all the same."""
    start = timers.start_timer("request")
    clock.advance(3.0)
    thread = threading.Thread(target=timers.end_timer, args=("request", start))
    thread.start()
    thread.join()
    assert found(timers, "request").total_s == 3.0


def test_threads_do_not_nest_in_each_other(timers, clock):
    """What another thread does in the meantime is not part of this thread's operation."""

    def work():
        with timers.time("worker"):
            clock.advance(5.0)

    with timers.time("main"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert (found(timers, "main").exclusive_s, found(timers, "worker").total_s) == (5.0, 5.0)


def test_no_record_of_a_thread_is_lost(timers):
    """Four threads that time the same operation are all counted."""

    def work():
        for _ in range(2000):
            with timers.time("work"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found(timers, "work").count == 8000


def test_spans_of_tasks_that_take_turns_have_their_own_time(timers, clock):
    """Blocks of two tasks on one thread that end in the order in which they began keep their own start."""

    async def task(name, first, second):
        with timers.time(name):
            clock.advance(first)
            await asyncio.sleep(0)
            clock.advance(second)

    async def both():
        await asyncio.gather(task("a", 1.0, 4.0), task("b", 2.0, 8.0))

    asyncio.run(both())
    assert (found(timers, "a").total_s, found(timers, "b").total_s) == (7.0, 14.0)


@pytest.mark.parametrize("start_time", [None, "now", True])
def test_an_end_without_a_start_time_is_refused(timers, start_time):
    """The error names the operation, what was given, and what to give."""
    timers.start_timer("load")
    with pytest.raises(ConfigError, match=r"end_timer\('load'\).*start_timer\('load'\)"):
        timers.end_timer("load", start_time)


def test_an_end_of_something_that_was_never_started_is_refused(timers, clock):
    """The error says what to call before."""
    with pytest.raises(ConfigError, match=r"end_timer\('load'\).*start_timer\('load'\)"):
        timers.end_timer("load", clock.now() - 1)


def test_a_second_end_of_the_same_start_is_refused(timers):
    """It is not counted twice."""
    start = timers.start_timer("load")
    timers.end_timer("load", start)
    with pytest.raises(ConfigError, match="ended before"):
        timers.end_timer("load", start)
    assert found(timers, "load").count == 1


@pytest.mark.parametrize("name", [3, None, "", ["load"]])
def test_a_name_that_is_no_string_is_refused(timers, name):
    """By pairs and by spans."""
    start = timers.start_timer(name)
    with pytest.raises(ConfigError, match="operation_name"):
        timers.end_timer(name, start)
    with pytest.raises(ConfigError, match="operation_name"), timers.time(name):
        pass


def test_switched_off_nothing_is_counted(timers, clock):
    """Neither pairs nor spans, and the code runs as before."""
    timers.enabled = False
    timers.end_timer("load", timers.start_timer("load"))
    with timers.time("load"):
        clock.advance(1.0)
    with pytest.raises(KeyError), timers.time("load"):
        raise KeyError
    assert found(timers, "load").count == 0


def test_a_timer_that_was_started_while_off_is_not_counted(timers, clock):
    """Switching on in between gives no nonsense."""
    timers.enabled = False
    start = timers.start_timer("load")
    timers.enabled = True
    clock.advance(1.0)
    timers.end_timer("load", start)
    assert found(timers, "load").count == 0


def test_names_without_end_are_counted_together(timers, clock, caplog):
    """Beyond the limit names share one operation, which is said once."""
    for index in range(MAX_OPERATIONS + 10):
        with timers.time(f"step_{index}"):
            clock.advance(1.0)
    assert found(timers, OTHER_OPERATIONS).count == 10
    assert timers.operation("one_more") is timers.operation(OTHER_OPERATIONS)
    assert len(caplog.records) == 1
