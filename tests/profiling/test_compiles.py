import jax
import numpy as np

from trackside.profiling.compiles import compile_counter


def test_counter_tells_compiles_from_cached_calls():
    """The counter grows with the first call of a jitted function and with a new shape, and not in between."""
    counter = compile_counter()
    double = jax.jit(lambda x: x * 2)
    num_events = [counter.num_events]
    for size in (3, 3, 3, 4, 4, 3):
        double(np.ones(size, np.float32))
        num_events.append(counter.num_events)
    assert (np.diff(num_events) > 0).tolist() == [True, False, False, True, False, False]


def test_there_is_one_counter_per_process():
    """Asking again gives the same counter: a listener cannot be removed, so there is only one."""
    assert compile_counter() is compile_counter()


def test_other_events_are_not_counted():
    """Events of JAX that are neither traces nor compiles leave the counter alone."""
    counter = compile_counter()
    before = counter.num_events
    jax.monitoring.record_event_duration_secs("/jax/some/other_duration", 0.1)
    assert counter.num_events == before
