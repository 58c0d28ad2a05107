import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import fork_server
from trackside.profiling.compiles import MAX_EVENTS, CompileCounter, compile_counter

pytestmark = pytest.mark.usefixtures("no_compile_cache")


@pytest.fixture
def new_events():
    """Tells the compiles since the test began, or since it last asked."""
    counter = compile_counter()
    last_number = counter.num_compiles

    def take():
        nonlocal last_number
        events = counter.events_after(last_number)
        last_number = counter.num_compiles
        return events

    return take


def ones(size):
    return np.ones(size, np.float32)


def test_counter_tells_compiles_from_cached_calls():
    """The counter grows with the first call of a jitted function and with a new shape, and not in between."""
    counter = compile_counter()
    double = jax.jit(lambda x: x * 2)
    num_events = [counter.num_events]
    for size in (3, 3, 3, 4, 4, 3):
        double(ones(size))
        num_events.append(counter.num_events)
    assert (np.diff(num_events) > 0).tolist() == [True, False, False, True, False, False]


def test_there_is_one_counter_per_process():
    """Asking again gives the same counter: a compile must not be counted twice."""
    assert compile_counter() is compile_counter()


def test_other_events_are_not_counted():
    """Events of JAX that are neither traces nor compiles leave the counter alone."""
    counter = compile_counter()
    before = counter.num_events
    jax.monitoring.record_event_duration_secs("/jax/some/other_duration", 0.1)
    assert counter.num_events == before


def test_a_compile_is_one_event_with_its_phases(new_events):
    """A jitted function that calls others is one compile under its own name, with three costs."""
    inner = jax.jit(lambda x: x + 1)

    @jax.jit
    def outer(x):
        return inner(x) * 2

    outer(ones(3))
    (event,) = new_events()
    assert (event.function, event.cache, event.is_operation, event.is_nested) == ("outer", "off", False, False)
    assert min(event.trace_s, event.lower_s, event.compile_s) > 0
    assert event.total_s == event.trace_s + event.lower_s + event.compile_s
    assert (event.thread_id, event.thread_name) == (threading.get_ident(), threading.current_thread().name)


def test_a_trace_without_a_compile_is_no_event(new_events):
    """`jax.eval_shape` only traces: no compile, although the counter has risen."""
    num_events = compile_counter().num_events
    jax.eval_shape(lambda x: x * 3, ones(3))
    assert new_events() == []
    assert compile_counter().num_events > num_events


def test_a_lost_trace_is_not_put_on_another_compile(new_events):
    """The seconds of a trace that led to nothing do not end up in the next compile that needed none."""

    @jax.jit
    def step(x):
        return x * 5

    step(ones(3))
    jax.eval_shape(lambda x: x - 1, ones(3))
    new_events()
    step(jax.device_put(ones(3), jax.devices()[1]))
    (event,) = new_events()
    assert (event.function, event.trace_s) == ("step", 0.0)


def test_compiles_inside_a_trace_are_told_apart(new_events):
    """What is compiled while a function is being traced is a separate event."""

    @jax.jit
    def outer(x):
        with jax.ensure_compile_time_eval():
            table = jax.jit(lambda y: jnp.sin(y).sum())(ones(7))
        return x * table

    outer(ones(3))
    inside, whole = new_events()
    assert (inside.function, inside.is_nested) == ("<lambda>", True)
    assert (whole.function, whole.is_nested) == ("outer", False)


def test_the_time_of_compiles_inside_a_trace_is_not_counted_twice():
    """A trace costs what it took less the compiles inside."""
    counter = CompileCounter()
    counter._on_begin("/jax/core/compile/jaxpr_trace_duration", 0.0, fun_name="f")
    for phase in ("jaxpr_to_mlir_module", "backend_compile"):
        counter._on_begin(f"/jax/core/compile/{phase}_duration", 0.0, fun_name="jit(g)")
        counter._on_end(f"/jax/core/compile/{phase}_duration", 2.0, fun_name="jit(g)")
    counter._on_end("/jax/core/compile/jaxpr_trace_duration", 5.0, fun_name="f")
    for phase in ("jaxpr_to_mlir_module", "backend_compile"):
        counter._on_begin(f"/jax/core/compile/{phase}_duration", 0.0, fun_name="jit(f)")
        counter._on_end(f"/jax/core/compile/{phase}_duration", 3.0, fun_name="jit(f)")
    costs = [(event.function, event.trace_s, event.lower_s, event.compile_s) for event in counter.events_after(0)]
    assert costs == [("g", 0.0, 2.0, 2.0), ("f", 1.0, 3.0, 3.0)]


def test_ahead_of_time_compiles_keep_their_phases(new_events):
    """`lower` of two functions and `compile` of both later gives each its own costs."""

    @jax.jit
    def first(x):
        return x + 11

    @jax.jit
    def second(x):
        return x + 12

    lowered = [function.lower(ones(3)) for function in (first, second)]
    assert new_events() == []
    for one in lowered:
        one.compile()
    events = new_events()
    assert [event.function for event in events] == ["first", "second"]
    assert all(event.trace_s > 0 and event.lower_s > 0 for event in events)


def test_operations_of_jax_are_marked(new_events):
    """An operation outside of jit is marked as JAX's own; a user's function of the same name is not."""

    @jax.jit
    def add(x):
        return x + 1

    add(ones(23))
    jnp.add(ones((23, 2)), ones((23, 2)))
    assert [(event.function, event.is_operation) for event in new_events()] == [("add", False), ("add", True)]


def test_compiles_of_other_threads_carry_their_thread(new_events):
    """A compile on another thread is heard of, with the thread's name."""
    thread = threading.Thread(target=lambda: jax.jit(lambda x: x * 9)(ones(3)), name="loader")
    thread.start()
    thread.join()
    assert [event.thread_name for event in new_events()] == ["loader"]


def test_memory_is_bounded_and_all_compiles_are_counted():
    """Of very many compiles the newest are remembered, in order, and all are counted."""
    counter = CompileCounter()
    for index in range(MAX_EVENTS + 5):
        counter._on_begin("/jax/core/compile/backend_compile_duration", 0.0, fun_name=f"jit(f{index})")
        counter._on_end("/jax/core/compile/backend_compile_duration", 0.5, fun_name=f"jit(f{index})")
    events = counter.events_after(0)
    assert [event.number for event in events] == list(range(6, MAX_EVENTS + 6))
    assert (counter.num_compiles, counter.num_events) == (MAX_EVENTS + 5, MAX_EVENTS + 5)


def test_listeners_never_raise():
    """Events without a name, without a begin or with odd values are taken as they are."""
    counter = CompileCounter()
    counter._on_end("/jax/core/compile/backend_compile_duration", 0.5)
    counter._on_end("/jax/core/compile/jaxpr_trace_duration", "soon", fun_name=3)  # type: ignore[arg-type]
    counter._on_begin("/jax/core/compile/backend_compile_duration", 0.0, fun_name="never ended")
    counter._on_cache("/jax/compilation_cache/cache_hits")
    assert (counter.num_events, [event.function for event in counter.events_after(0)]) == (2, [""])


CACHE_SCRIPT = """
import sys
import jax, numpy as np
from trackside.profiling.compiles import compile_counter
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
counter = compile_counter()
def step(x):
    return x * 2
for _ in range(2):
    jax.jit(step)(np.ones(3, np.float32))
    jax.clear_caches()
print([event.cache for event in counter.events_after(0)])
"""


@pytest.mark.slow
def test_persistent_cache_is_a_miss_and_then_a_hit(tmp_path):
    """With a persistent cache, the first compile misses it and a later one of the same function hits it."""
    command = [sys.executable, "-c", CACHE_SCRIPT, str(tmp_path)]
    result = fork_server.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['miss', 'hit']"


class Book:
    """Writes down what it hears."""

    def __init__(self):
        self.heard = []

    def begin_compiling(self):
        self.heard.append("begin")

    def end_compiling(self):
        self.heard.append("end")


def test_book_hears_of_each_phase_once_with_all_that_is_inside():
    """Tracing, lowering and compiling of a function that calls another are three phases, and cached calls are none."""
    book, inner = Book(), jax.jit(lambda x: x + 1)
    outer = jax.jit(lambda x: inner(x) * 2)
    with compile_counter().booked_by(book):
        outer(ones(3))
        num_heard = len(book.heard)
        outer(ones(3))
    jax.jit(lambda x: x - 1)(ones(3))
    assert book.heard == ["begin", "end"] * (num_heard // 2)
    assert len(book.heard) == num_heard >= 6


def test_book_hears_the_end_of_a_trace_that_fails():
    """An error in traced code ends the phase."""
    book = Book()
    with compile_counter().booked_by(book), pytest.raises(ValueError, match="broken"):
        jax.jit(raise_broken)(ones(3))
    assert book.heard == ["begin", "end"]


def raise_broken(x):
    raise ValueError("broken")


def test_book_hears_nothing_of_other_threads():
    """A compile of another thread takes none of this one's time."""
    book = Book()
    with compile_counter().booked_by(book):
        thread = threading.Thread(target=lambda: jax.jit(lambda x: x * 5)(ones(3)))
        thread.start()
        thread.join()
    assert book.heard == []
