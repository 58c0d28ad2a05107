from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from trackside.errors import CaptureError, ConfigError
from trackside.profiling.capture import start_capture
from trackside.testing import capture_function
from trackside.trace import TraceReport, analyse_trace


def test_each_call_is_a_step(captured: TraceReport):
    """The report holds as many steps as calls were asked for, and the function's scopes."""
    assert captured.num_steps == 5
    assert "heavy" in {row.scope for row in captured.scopes}
    assert captured.step_time is not None


def test_warm_up_is_not_captured():
    """A function that compiles is compiled before the window begins."""
    calls = []
    step = jax.jit(lambda x: x * 2.0)

    def counted(x: jax.Array) -> jax.Array:
        calls.append(len(calls))
        return step(x)

    report = capture_function(counted, jnp.ones(8), num_steps=3, num_warm_up=2)
    assert len(calls) == 5
    assert report.num_steps == 3


def test_the_trace_is_kept_on_demand(tmp_path: Path):
    """With a directory the trace is left there, where others can read it."""
    capture_function(jax.jit(lambda x: x * 2.0), jnp.ones(8), num_steps=3, directory=tmp_path)
    assert analyse_trace(tmp_path).num_steps == 3


def fail(x: jax.Array) -> jax.Array:
    raise KeyError("broken")


def test_an_error_of_the_function_ends_the_capture():
    """What the function raises comes through, and the next capture can start."""
    with pytest.raises(KeyError, match="broken"):
        capture_function(fail, jnp.ones(8), num_warm_up=0)
    assert capture_function(jax.jit(lambda x: x * 2.0), jnp.ones(8), num_steps=2).num_steps == 2


def test_another_capture_under_way_is_named(tmp_path: Path):
    """JAX can take one capture at a time; the error names the other one."""
    other = start_capture(tmp_path, "other", 1)
    try:
        with pytest.raises(CaptureError, match="other"):
            capture_function(jax.jit(lambda x: x * 2.0), jnp.ones(8))
    finally:
        other.cancel()


@pytest.mark.parametrize("numbers", [{"num_steps": 0}, {"num_warm_up": -1}])
def test_bad_numbers_are_refused(numbers: dict[str, int]):
    """No steps, or warm-up below zero, are refused by name."""
    with pytest.raises(ConfigError, match="num_steps, num_warm_up"):
        capture_function(jnp.sin, 1.0, **numbers)
