"""What is learned of the steps of a loop that is not ours."""

from pathlib import Path

import jax
import jax.numpy as jnp

from tests.measured_run.own_loops import open_run_of, rows_of
from trackside.clock import ManualClock
from trackside.measured_run import MeasuredRun


def update(weights: jax.Array, inputs: jax.Array) -> jax.Array:
    """A step of a dozen operations."""
    loss = jax.grad(lambda weights: jnp.mean((jnp.tanh(inputs @ weights) - jnp.sin(inputs[:, 0])) ** 2))
    return weights - 0.1 * jnp.clip(loss(weights), -1.0, 1.0)


def eager_steps(folder: Path, step: object, size: int) -> list[dict[str, dict[str, int]]]:
    """What a run says of steps that are not compiled. Operations compile once for each size in a process."""
    with open_run_of(folder) as run:
        run.step(step, name="update")(jnp.zeros(size), jnp.ones((size, size)))  # type: ignore[arg-type]
    return [row["eager_steps"] for row in rows_of(run, "environment") if "eager_steps" in row]


def test_a_step_that_is_not_compiled_is_noticed(tmp_path: Path) -> None:
    """A call that compiles nothing but single operations is a step that was not jitted."""
    (found,) = eager_steps(tmp_path / "run", update, 37)
    assert found["update"]["num_operations"] >= 8
    assert found["update"]["num_programs"] == 0


def test_a_compiled_step_may_be_inside_of_a_plain_function(tmp_path: Path) -> None:
    """A plain function around a jitted one is as good as the jitted one, also with operations beside it."""
    jitted = jax.jit(update)
    assert eager_steps(tmp_path / "jitted", jitted, 38) == []
    assert eager_steps(tmp_path / "around", lambda *args: jitted(*args) + jnp.cos(args[0]) * 2.0, 39) == []


def test_the_device_is_that_of_jax_if_there_is_one(tmp_path: Path) -> None:
    """A function on the host, such as an environment, may be called first: what JAX computes on is the device."""
    with open_run_of(tmp_path / "run") as run:
        act, learn = run.step(lambda: 0.5, steps_per_call=0, name="act"), run.step(jax.jit(update))
        act()
        assert run._meter.device.is_host
        learn(jnp.zeros(40), jnp.ones((40, 40)))
        act()
        assert not run._meter.device.is_host
    check_devices(run)


def test_a_function_may_return_nothing_at_first(tmp_path: Path) -> None:
    """As one that learns once there is enough to learn from: then its device is seen, also if nothing compiles."""
    clock, learn = ManualClock(), jax.jit(update)
    weights, inputs = learn(jnp.zeros(40), jnp.ones((40, 40))), jnp.ones((40, 40))
    with open_run_of(tmp_path / "run", clock=clock) as run:
        step = run.step(lambda is_filled: learn(weights, inputs) if is_filled else None, name="step")
        for is_filled in (False, True, True):
            step(is_filled)
            clock.advance(1.0)
    check_devices(run)


def check_devices(run: MeasuredRun) -> None:
    """The run has seen the host first, and then the devices of JAX."""
    devices = [row["devices"] for row in rows_of(run, "environment") if "devices" in row]
    assert devices[0] == ["host"]
    assert devices[1:] == [[str(device) for device in jax.devices()]]
