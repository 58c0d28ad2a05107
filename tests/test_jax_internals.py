"""The private API that trackside uses: what it gives today, and what happens on the day it is gone."""

import atexit
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import pytest

from trackside import jax_internals
from trackside.errors import CaptureError
from trackside.profiling.compiles import compile_counter
from trackside.profiling.session import Session
from trackside.profiling.signature import jitted_name, signature_of


def my_function(x, size):
    return x * size


def test_a_profiler_session_gives_a_trace():
    """The session returns the trace as bytes, which the public calls do not."""
    session = Session()
    jnp.ones(3).block_until_ready()
    assert len(session.stop()) > 0


def test_without_profiler_sessions_a_capture_is_refused(monkeypatch):
    """A version of JAX without the class is named in the error, before anything is traced."""
    monkeypatch.setattr(jax_internals, "_profiler", None)
    with pytest.raises(CaptureError, match=f"JAX {jax.__version__}"):
        Session()


def test_static_arguments_are_known():
    """By position and by name."""
    found = jax_internals.static_arguments(jax.jit(my_function, static_argnums=1))
    assert found is not None
    assert (found.numbers, found.names) == ({1}, {"size"})


def test_without_jit_info_no_function_is_jitted_and_any_value_may_be_static(monkeypatch):
    """Compiles are then not attributed by name, and numbers are compared by value."""
    jitted = jax.jit(my_function, static_argnums=1)
    monkeypatch.setattr(jax_internals, "_jit_info", lambda function: None)
    assert jitted_name(jitted) is None
    assert jax_internals.static_arguments(jitted) is None
    assert signature_of((1.0, 3), function=jitted).leaves["size"].value == "3"


def test_an_operation_of_jax_is_told_from_a_function_of_the_same_name(fresh_compiles):
    """Both are called `add`; only the one that JAX defines is an operation."""
    counter = compile_counter()
    before = counter.num_compiles

    def add(x):
        return x + 1.0

    jax.jit(add)(jnp.ones(317))
    jnp.add(jnp.ones(318), jnp.ones(318))
    found = [event.is_operation for event in counter.events_after(before) if event.function == "add"]
    assert found == [False, True]


def test_without_jits_frame_a_compile_is_the_users():
    """Outside of jit's slow path there is no such frame."""
    assert not jax_internals.is_compiling_own_operation()


@pytest.mark.parametrize("name", ["jax_enable_preemption_service", "jax_compilation_cache_dir"])
def test_options_can_be_read(name):
    """Those that trackside asks for exist in this version of JAX."""
    assert hasattr(jax.config, name)
    assert jax_internals.config_value(name) == jax.config.values[name]


def test_an_option_that_is_gone_reads_as_none():
    """So that an option which a later version drops counts as switched off."""
    assert jax_internals.config_value("jax_no_such_option") is None


def test_a_function_can_use_thread_pools_while_the_interpreter_shuts_down():
    """Which is too late for `atexit`."""
    script = (
        "import atexit, concurrent.futures\n"
        "from trackside.jax_internals import run_before_threads_end\n"
        "pool = concurrent.futures.ThreadPoolExecutor()\n"
        "pool.submit(int).result()\n"
        "run_before_threads_end(lambda: print('pool says', pool.submit(lambda: 7).result()))\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "pool says 7\n"


def test_without_the_hook_of_threads_the_function_runs_at_exit(monkeypatch):
    """Later, but it runs."""
    registered = []
    monkeypatch.delattr(threading, "_register_atexit")
    monkeypatch.setattr(atexit, "register", registered.append)
    jax_internals.run_before_threads_end(print)
    assert registered == [print]


def test_a_running_profile_is_known(tmp_path):
    """From its start to its end."""
    before = jax_internals.is_profile_running()
    with jax.profiler.trace(str(tmp_path)):
        during = jax_internals.is_profile_running()
    assert (before, during, jax_internals.is_profile_running()) == (False, True, False)


def test_a_function_is_called_before_a_profile_starts(tmp_path):
    """While the profiler is still free, and not any more after the block."""
    found = []
    with jax_internals.before_profile_starts(lambda: found.append(jax_internals.is_profile_running())):
        jax.profiler.start_trace(str(tmp_path))
    jax.profiler.stop_trace()
    assert found == [False]


def test_without_the_state_of_jaxs_profiler_nothing_is_asked(tmp_path, monkeypatch):
    """No profile seems to run, and profiles start as they would without trackside."""
    monkeypatch.setattr(jax_internals, "_profile_state", None)
    with jax_internals.before_profile_starts(lambda: pytest.fail("asked")), jax.profiler.trace(str(tmp_path)):
        assert not jax_internals.is_profile_running()
