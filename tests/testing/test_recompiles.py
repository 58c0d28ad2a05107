import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trackside.errors import ConfigError
from trackside.events import NullEventWriter
from trackside.profiling.sentinel import RecompileSentinel
from trackside.testing import assert_no_recompiles


def make_step():
    def step(batch):
        return batch * 2

    return jax.jit(step)


def zeros(*shape):
    return np.zeros(shape, np.float32)


def call_with(step, *sizes):
    for size in sizes:
        step(zeros(size))


def jit_and_call(*sizes):
    """As in a loop that makes its step anew each time."""
    for size in sizes:
        make_step()(zeros(size))


def call_and_fail(step, *sizes):
    call_with(step, *sizes)
    raise KeyError


def test_one_compile_per_function_is_fine():
    """A block in which each function compiles once passes, however often it is called."""
    step, evaluate = make_step(), jax.jit(lambda x: x + 1)
    with assert_no_recompiles():
        for _ in range(3):
            evaluate(step(zeros(8)))


def test_a_second_compile_fails():
    """A function that compiles twice is named, with how often and how to learn the cause."""
    step = make_step()
    with (
        pytest.raises(AssertionError, match=r"step was compiled 2 times in .* m?s, 1 expected:\n  .*as step"),
        assert_no_recompiles(),
    ):
        call_with(step, 8, 7)


def test_the_changed_argument_is_named_through_the_block():
    """Calling what the block gives names the leaf and what to do."""
    with (
        pytest.raises(AssertionError, match=r"step was compiled 2 times.*\n  batch: shape \(8,\) -> \(7,\)\. .*pad"),
        assert_no_recompiles(make_step()) as step,
    ):
        call_with(step, 8, 7)


def test_the_changed_argument_is_named_for_watched_functions():
    """A function that a sentinel watches is explained without being passed."""
    step = RecompileSentinel(NullEventWriter()).watch(make_step())
    step(zeros(8))
    with (
        pytest.raises(AssertionError, match=r"batch: shape \(8,\) -> \(7,\)"),
        assert_no_recompiles(after_warm_up=True),
    ):
        step(zeros(7))


def test_after_warm_up_no_compile_is_fine():
    """With everything warmed up, even one compile is too many, and none passes."""
    step = make_step()
    step(zeros(8))
    with assert_no_recompiles(after_warm_up=True):
        step(zeros(8))
    with (
        pytest.raises(AssertionError, match=r"step was compiled 1 time in .*, 0 expected"),
        assert_no_recompiles(after_warm_up=True),
    ):
        step(zeros(7))


def test_some_recompiles_can_be_allowed():
    """A known recompile, such as that of the last batch, can be allowed; one more fails."""
    with assert_no_recompiles(allow=1):
        call_with(make_step(), 8, 7)
    with pytest.raises(AssertionError, match="compiled 3 times"), assert_no_recompiles(allow=1):
        call_with(make_step(), 8, 7, 6)


def test_operations_outside_of_jit_do_not_count():
    """Single operations compile for each shape, which is no fault of a loop."""
    with assert_no_recompiles():
        for size in (31, 32, 33):
            jnp.sin(jnp.ones(size)) + 1


def test_a_function_that_is_jitted_anew_is_found():
    """Jitting inside of a loop compiles each time, under the same name."""
    with pytest.raises(AssertionError, match="step was compiled 3 times"), assert_no_recompiles():
        jit_and_call(8, 8, 8)


def test_only_the_functions_that_are_passed_count():
    """Recompiles of others pass where functions are named; several functions come back as a tuple."""
    other = jax.jit(lambda x: x - 1)
    with assert_no_recompiles(make_step(), make_step()) as (first, second):
        assert (first.__name__, second.__name__) == ("step", "step")
        call_with(other, 8, 7)


def test_an_error_inside_the_block_comes_through():
    """What the block raises is not hidden by the assertion."""
    with pytest.raises(KeyError), assert_no_recompiles():
        call_and_fail(make_step(), 8, 7)


def test_bad_arguments_are_refused():
    """A negative allowance, and a function without a name, are named with the fix."""
    with pytest.raises(ConfigError, match=r"allow.*-1"), assert_no_recompiles(allow=-1):
        pass
    with pytest.raises(ConfigError, match="pass the jitted function"), assert_no_recompiles(Nameless()):
        pass


class Nameless:
    def __call__(self):
        return None
