"""Which array shows that a call has completed, also where a call returns none or a large one."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from tests.measured_run.own_loops import open_run_of
from trackside.measured_run.call_output import COMPLETE, MAX_KEPT_BYTES, CallOutput
from trackside.profiling.timers.device_outputs import TracedOutputError


class Counter(nnx.Module):
    """Something that a step changes in place."""

    def __init__(self) -> None:
        self.weights, self.count = nnx.Param(jnp.ones((4, 4))), nnx.Variable(jnp.zeros(()))


@nnx.jit
def count_up(counter: Counter) -> None:
    """A step that returns nothing, as those of many NNX examples."""
    counter.count[...] += 1


class UnderWay:
    """An array that a device still computes."""

    def is_deleted(self) -> bool:
        """It is not."""
        return False

    def is_ready(self) -> bool:
        """It is not."""
        return False


def test_a_changed_variable_shows_when_a_step_is_over() -> None:
    """A step of NNX that returns nothing is followed by the smallest variable that it changes."""
    counter, output = Counter(), CallOutput()
    for number in (1, 2, 3, 4, 5):
        count_up(counter)
        found = output.find(None, ((counter,), {}))
        assert found is counter.count.get_raw_value()
        assert float(found) == number


def test_a_variable_that_stays_shows_nothing() -> None:
    """What a call leaves as it is says nothing about the call."""
    counter, output = Counter(), CallOutput(is_jitted=True)
    del counter.weights
    assert output.find(None, ((counter,), {})) is counter.count.get_raw_value()
    assert output.find(None, ((counter,), {})) is None


def test_variables_that_are_traced_are_part_of_another_call() -> None:
    """While JAX traces a function around it, a step computes nothing."""
    output = CallOutput()

    @nnx.jit
    def outer(counter: Counter) -> None:
        with pytest.raises(TracedOutputError):
            output.find(None, ((counter,), {}))

    outer(Counter())


def test_a_jitted_function_without_results_is_not_taken_for_complete() -> None:
    """Nobody can see when the device is done with it, so nothing is said about the device."""
    assert CallOutput(is_jitted=True).find(None) is None
    with open_run_of() as run:
        step = run.step(jax.jit(lambda x: None))
        for _ in range(5):
            step(1.0)
    assert run.ledger_totals.num_steps == 5
    assert run.ledger_totals.device_idle_s is None


def test_work_that_a_function_keeps_to_itself_is_not_taken_for_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain function is over when it returns, unless the device is then still at work."""
    assert CallOutput().find(None) is COMPLETE
    monkeypatch.setattr(jax, "live_arrays", lambda: [UnderWay()])
    output = CallOutput()
    assert output.find(None) is None
    monkeypatch.setattr(jax, "live_arrays", list)
    assert output.find(None) is None


@pytest.mark.parametrize(("shape", "num_kept"), [((), 256), ((512, 512), 16), ((4096, 4096), 1)])
def test_few_large_arrays_are_kept(shape: tuple[int, ...], num_kept: int) -> None:
    """What a step returns may be as large as the model; then few of them stay when the loop has let go of them."""
    output = CallOutput(is_jitted=True)
    output.find((jnp.zeros(shape),))
    assert output.max_kept == num_kept


def test_a_loop_does_not_keep_its_states(no_garbage: None) -> None:
    """A step that returns nothing but a large state keeps as many of them alive as the bare loop, and a few more."""
    step_, state = jax.jit(lambda state: state * 0.5), jnp.ones((1024, 1024))
    num_alive = 0
    with open_run_of() as run:
        step = run.step(step_, name="halve")
        for _ in range(50):
            state = step(state)
            state.block_until_ready()
            num_alive = max(num_alive, sum(array.shape == state.shape for array in jax.live_arrays()))
    assert num_alive <= MAX_KEPT_BYTES // state.nbytes + 2
