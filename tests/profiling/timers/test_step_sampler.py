import tempfile
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trackside.clock import ManualClock
from trackside.profiling import TrainingProfiler, profile_jax_loss_fn, profile_make_step
from trackside.profiling.capture import start_capture
from trackside.profiling.timers.durations import DurationSketch
from trackside.profiling.timers.sampled_shares import MIN_SAMPLES, ShareSample
from trackside.profiling.timers.step_sampler import (
    BUDGET,
    MAX_FAILURES,
    MAX_FIRST_ATTEMPTS,
    MAX_FIRST_STEPS,
    MAX_STEPS,
    NUM_WARM_UP_CALLS,
    SampleBudget,
    StepSampler,
    split_step,
)
from trackside.trace import analyse_trace
from trackside.trace.undisturbed_phases import UndisturbedPhases

pytestmark = pytest.mark.usefixtures("no_compile_cache")

MANY_STEPS = 200_000
"""More than any sample takes, so that a test ends if there is none."""


def my_loss(params, x):
    for weights in params:
        x = jnp.tanh(x @ weights)
    return jnp.mean(x**2)


@jax.jit
def my_step(params, moments, x):
    """A step whose update is worth measuring."""
    value, grads = jax.value_and_grad(my_loss)(params, x)
    moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g * g, moments, grads)
    return jax.tree.map(lambda p, g, m: p - 1e-3 * g / (jnp.sqrt(m) + 1e-8), params, grads, moments), moments, value


def arguments():
    rng = np.random.default_rng(0)
    params = [jnp.asarray(rng.normal(size=(32, 32)) / 16, jnp.float32) for _ in range(2)]
    return params, jax.tree.map(jnp.zeros_like, params), jnp.asarray(rng.normal(size=(32, 32)), jnp.float32)


def train_until(is_over, step):
    """Make steps until something has happened."""
    params, moments, x = arguments()
    for _ in range(MANY_STEPS):
        params, moments, value = step(params, moments, x)
        value.block_until_ready()
        if is_over():
            return
    pytest.fail(f"{MANY_STEPS} steps were not enough")


def is_sampled(profiler):
    """Whether there are enough samples; asked without waiting for anything."""
    return lambda: not profiler.sampled.awaited()


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """A profiler after a training in which the step was sampled, and what was left in its temporary directory."""
    folder = tmp_path_factory.mktemp("temporary")
    profiler = TrainingProfiler(log_to_wandb=False)
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        train_until(is_sampled(profiler), profile_make_step(my_step, profiler=profiler))
        assert profiler.wait(300)
    finally:
        tempfile.tempdir = before
    return SimpleNamespace(profiler=profiler, left=list(Path(folder).iterdir()))


def test_loss_and_update_are_reported_with_their_intervals(sampled):
    """As shares of the step, once there are enough samples."""
    summary = sampled.profiler.get_summary()
    loss, update = summary["loss_fn_computation"], summary["model_update"]
    assert loss["num_samples"] == update["num_samples"] >= MIN_SAMPLES
    assert loss["step_share"] + update["step_share"] == pytest.approx(1.0)
    assert 0 <= loss["step_share_low"] <= loss["step_share"] <= loss["step_share_high"] <= 1
    assert sampled.profiler.not_sampled_yet() == []


def test_a_sampled_operation_is_scaled_by_the_steps(sampled):
    """It counts for every step that compiled nothing, with its share of what they took."""
    summary = sampled.profiler.get_summary()
    loss, step = summary["loss_fn_computation"], summary["make_step_total"]
    assert step["count"] - 1 <= loss["count"] <= step["count"]
    assert loss["total_time"] == pytest.approx(loss["avg_time"] * loss["count"])
    assert loss["total_time"] <= step["total_time"]
    assert "p50_time" not in loss


def test_nothing_is_left_on_disk(sampled):
    """The captures of samples are removed."""
    assert sampled.left == []


def test_the_first_samples_do_not_wait_for_the_budget():
    """They are short, and as many as are needed for an interval."""
    budget = SampleBudget(now_s=100.0)
    for _ in range(MIN_SAMPLES):
        assert (budget.is_due(100.0), budget.max_steps) == (True, MAX_FIRST_STEPS)
        budget.spend(2.0)
        budget.succeed()
    assert (budget.is_due(101.0), budget.max_steps) == (False, MAX_STEPS)


def test_further_samples_cost_a_hundredth_of_the_time():
    """The next one is due when the time since the start is a hundred times the cost of all so far."""
    budget = SampleBudget(now_s=50.0)
    for _ in range(MIN_SAMPLES):
        budget.spend(2.0)
        budget.succeed()
    due_s = 50.0 + 2.0 * MIN_SAMPLES / BUDGET
    assert [budget.is_due(now_s) for now_s in (due_s - 0.1, due_s)] == [False, True]


def test_attempts_that_give_no_sample_are_budgeted_too():
    """A step that is never seen is not tried again at once for ever."""
    budget = SampleBudget(now_s=0.0)
    for _ in range(MAX_FIRST_ATTEMPTS):
        assert budget.is_due(0.0)
        budget.spend(1.0)
    assert not budget.is_due(1.0)


def make_sampler():
    profiler = TrainingProfiler(log_to_wandb=False, clock=ManualClock())
    sampler = StepSampler(profiler, "make_step_total", "jit_my_step", DurationSketch())
    sampler.expect("loss_fn_computation", "model_update")
    return profiler, sampler


def test_a_compile_restarts_the_warm_up():
    """Nothing is sampled for a number of calls after it."""
    _, sampler = make_sampler()
    for _ in range(NUM_WARM_UP_CALLS - 1):
        assert sampler.mark_call() is None
    sampler.warm_up()
    for _ in range(NUM_WARM_UP_CALLS - 1):
        assert sampler.mark_call() is None
    assert not sampler.is_sampling


def test_nothing_is_sampled_before_it_is_known_what():
    """As with a plain function that may have no loss at all."""
    sampler = StepSampler(TrainingProfiler(log_to_wandb=False), "make_step_total", None, DurationSketch())
    for _ in range(3 * NUM_WARM_UP_CALLS):
        assert sampler.mark_call() is None
    assert not sampler.is_sampling


def sampling_profiler():
    """A profiler and a step of which a sample is being taken."""
    profiler = TrainingProfiler(log_to_wandb=False)
    step = profile_make_step(my_step, profiler=profiler)
    train_until(lambda: step._sampler.mark_call() is not None, step)
    return profiler, step


def test_a_profile_by_jax_ends_a_sample(tmp_path):
    """The user's own profile is complete, whatever was being sampled when it began."""
    profiler, _ = sampling_profiler()
    with jax.profiler.trace(str(tmp_path)):
        jax.block_until_ready(my_step(*arguments()))
    assert "jit_my_step" in {row.name for row in analyse_trace(tmp_path).programs}
    assert profiler.wait(300)
    assert profiler.sampled.awaited() == ["loss_fn_computation", "model_update"]


def test_a_capture_ends_a_sample(tmp_path):
    """One that was asked for is more than one that is taken in the background."""
    profiler, _ = sampling_profiler()
    start_capture(tmp_path, "mine", 1).cancel()
    assert profiler.wait(300)
    assert profiler.sampled.awaited() == ["loss_fn_computation", "model_update"]


@pytest.mark.parametrize("by_jax", [True, False])
def test_no_sample_is_taken_during_a_profile(tmp_path, by_jax):
    """It is left alone, and complete; the sampler tries again later."""
    profiler = TrainingProfiler(log_to_wandb=False)
    step = profile_make_step(my_step, profiler=profiler)
    num_steps = iter(range(5 * NUM_WARM_UP_CALLS))
    if by_jax:
        with jax.profiler.trace(str(tmp_path)):
            train_until(lambda: next(num_steps, None) is None, step)
            assert profiler.wait(300)
    else:
        capture = start_capture(tmp_path, "mine", 1)
        train_until(lambda: next(num_steps, None) is None, step)
        assert profiler.wait(300)
        capture.stop(1)
        assert capture.wait().error == ""
    assert profiler.not_sampled_yet() == ["loss_fn_computation", "model_update"]


def phases(**seconds):
    """Both ways of leaving out disturbances, which agree."""
    return UndisturbedPhases(seconds, seconds, 1.4)


def test_all_under_a_gradient_is_the_loss():
    """Forward, backward and what is computed again; the rest is the update where it has no scope."""
    loss, update = split_step(phases(forward=1.0, backward=2.0, recompute=0.5, other=0.5))
    assert (loss, update) == (ShareSample(0.875, 0.875, 1.4), ShareSample(0.125, 0.125, 1.4))


def test_an_update_with_a_scope_is_what_is_under_it():
    """What is neither loss nor update belongs to neither."""
    loss, update = split_step(phases(forward=1.0, backward=2.0, optimizer=0.5, other=0.5))
    assert (loss, update) == (ShareSample(0.75, 0.75, 1.4), ShareSample(0.125, 0.125, 1.4))


def test_both_ways_are_kept():
    """The sample has the share by each of them; an update that the fastest steps do not have is none of those."""
    loss, update = split_step(UndisturbedPhases({"forward": 1.0, "optimizer": 3.0}, {"forward": 2.0}, 1.0))
    assert (loss, update) == (ShareSample(0.25, 1.0, 1.0), ShareSample(0.75, 0.0, 1.0))


def test_a_step_without_a_gradient_is_given_up(caplog):
    """After a few samples a warning says why there is no share, and no more are taken."""
    _, sampler = make_sampler()
    for _ in range(MAX_FAILURES):
        sampler._take_in(SimpleNamespace(report=object(), undisturbed_phases=phases(other=1.0), error=""))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "under a gradient" in caplog.text
    for _ in range(3 * NUM_WARM_UP_CALLS):
        sampler.mark_call()
    assert not sampler.is_sampling


def test_a_program_of_another_name_is_looked_for_without_it():
    """A step to which XLA gives another name is sampled without it from then on."""
    profiler = TrainingProfiler(log_to_wandb=False)
    misnamed = jax.jit(lambda params, moments, x: my_step(params, moments, x))
    misnamed.__name__ = "another_name"
    train_until(is_sampled(profiler), profile_make_step(misnamed, profiler=profiler))


def test_a_renamed_loss_is_awaited_under_its_new_name_only():
    """As when the loss is wrapped under a name of the user's."""
    profiler, sampler = make_sampler()
    sampler.expect("my_loss", "model_update")
    assert sorted(profiler.not_sampled_yet()) == ["model_update", "my_loss"]


def test_a_wrapped_loss_names_what_is_sampled():
    """The step passes the function itself on, and awaits it under the wrapper's name."""
    profiler = TrainingProfiler(log_to_wandb=False)
    step = profile_make_step(
        jax.jit(lambda params, x, loss_fn: jax.grad(loss_fn)(params, x), static_argnums=2), profiler=profiler
    )
    params, _, x = arguments()
    step(params, x, profile_jax_loss_fn(my_loss, "mine", profiler))
    assert sorted(profiler.not_sampled_yet()) == ["mine", "model_update"]
