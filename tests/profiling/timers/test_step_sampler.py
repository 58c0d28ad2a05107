import os
import subprocess
import sys
import tempfile
import time
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
from trackside.profiling.timers.step_sampler import BUDGET, MAX_FAILURES, NUM_WARM_UP_CALLS, StepSampler, split_step

pytestmark = pytest.mark.usefixtures("no_compile_cache")

WIDTH, DEPTH = 256, 4


def my_loss(params, x):
    for weights in params:
        x = jnp.tanh(x @ weights)
    return jnp.mean(x**2)


@jax.jit
def my_step(params, moments, x):
    """A step whose update is worth measuring: it takes the square root of each number."""
    value, grads = jax.value_and_grad(my_loss)(params, x)
    moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g * g, moments, grads)
    return jax.tree.map(lambda p, g, m: p - 1e-3 * g / (jnp.sqrt(m) + 1e-8), params, grads, moments), moments, value


def arguments(rows=256):
    rng = np.random.default_rng(0)
    params = [jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / 16, jnp.float32) for _ in range(DEPTH)]
    return params, jax.tree.map(jnp.zeros_like, params), jnp.asarray(rng.normal(size=(rows, WIDTH)), jnp.float32)


def train(step, num_steps, rows=256):
    params, moments, x = arguments(rows)
    for _ in range(num_steps):
        params, moments, value = step(params, moments, x)
    return value


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """A profiler after a training in which the step was sampled, and what was left in its temporary directory."""
    folder = tmp_path_factory.mktemp("temporary")
    profiler = TrainingProfiler(log_to_wandb=False)
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        step = profile_make_step(my_step, profiler=profiler)
        deadline = time.monotonic() + 60
        while profiler.not_sampled_yet() and time.monotonic() < deadline:
            train(step, 60)
            profiler.wait(60)
    finally:
        tempfile.tempdir = before
    return SimpleNamespace(profiler=profiler, step=step, left=list(Path(folder).iterdir()))


def test_the_first_sample_is_taken_after_warm_up(sampled):
    """The loss and the update are in the summary, as shares of the step, with the number of samples."""
    summary = sampled.profiler.get_summary()
    loss, update = summary["loss_fn_computation"], summary["model_update"]
    assert loss["num_samples"] == update["num_samples"] >= 1
    assert loss["step_share"] + update["step_share"] == pytest.approx(1.0)
    assert 0.3 < loss["step_share"] < 0.99
    assert sampled.profiler.not_sampled_yet() == []


def test_a_sampled_operation_is_scaled_by_the_steps(sampled):
    """As often as there were steps that compiled nothing, with its share of what they took."""
    summary = sampled.profiler.get_summary()
    loss, step = summary["loss_fn_computation"], summary["make_step_total"]
    assert step["count"] - 1 <= loss["count"] <= step["count"]
    assert loss["total_time"] == pytest.approx(loss["avg_time"] * loss["count"])
    assert loss["total_time"] <= step["total_time"]
    assert "p50_time" not in loss


def test_nothing_is_left_on_disk(sampled):
    """The captures of samples are removed."""
    assert sampled.left == []


def test_the_next_sample_waits_for_the_budget(sampled):
    """Until all samples together cost less than a hundredth of the time that has passed."""
    sampler = sampled.step._sampler
    assert sampler._next_s - sampler._started_s == pytest.approx(sampler._cost_s / BUDGET)
    assert sampler._cost_s > 0


TRUTH_SCRIPT = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before jax counts the cores
import time
import jax, jax.numpy as jnp, numpy as np
from trackside.profiling import TrainingProfiler, profile_make_step
from trackside.profiling.timers import step_sampler

step_sampler.BUDGET = 10.0  # samples one after the other
def loss(params, x):
    for weights in params:
        x = jnp.tanh(x @ weights)
    return jnp.mean(x**2)

def update(value, gradient):
    for _ in range(16):  # an update worth measuring
        gradient = jnp.sin(gradient)
    return value - 1e-3 * gradient

@jax.jit
def step(params, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(update, params, grads), value

rng = np.random.default_rng(0)
params = [jnp.asarray(rng.normal(size=(256, 256)) / 16, jnp.float32) for _ in range(4)]
x = jnp.asarray(rng.normal(size=(256, 256)), jnp.float32)
gradient = jax.jit(jax.value_and_grad(loss))
profiler = TrainingProfiler(log_to_wandb=False)
profiled = profile_make_step(step, profiler=profiler)
taken = {gradient: [], step: []}
for _ in range(3):
    for _ in range(40):
        for function in taken:
            started = time.perf_counter()
            jax.block_until_ready(function(params, x))
            taken[function].append(time.perf_counter() - started)
    for _ in range(60):
        _, value = profiled(params, x)
    profiler.wait()
found = profiler.get_summary()["loss_fn_computation"]
truth = min(taken[gradient]) / min(taken[step])  # what is above is other programs
print(found["step_share"], truth, found["num_samples"], found.get("step_share_low"), found.get("step_share_high"))
"""


def measure_share():
    result = subprocess.run([sys.executable, "-c", TRUTH_SCRIPT], capture_output=True, text=True, check=True)
    return map(float, result.stdout.split())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs to keep a process on one core")
def test_the_share_is_near_that_of_a_loss_timed_by_itself():
    """Two of at most eight trainings are within 15 % of an independently timed loss.

    Other programs on the core may disturb one of the two figures, and not the other. It is one core because on several,
    XLA runs parts of the update beside the gradient, and neither takes a time of its own.
    """
    ratios = []
    while sum(is_near(ratio) for ratio in ratios) < 2:
        assert len(ratios) < 8, f"sampled shares were {ratios} of what was timed"
        share, truth, num_samples, low, high = measure_share()
        assert num_samples >= 2
        assert 0 <= low < share < high <= 1
        ratios.append(share / truth)


def is_near(ratio):
    return abs(ratio - 1) <= 0.15


def make_sampler(clock=None):
    profiler = TrainingProfiler(log_to_wandb=False, clock=clock or ManualClock())
    sampler = StepSampler(profiler, "make_step_total", "jit_my_step", DurationSketch())
    sampler.expect("loss_fn_computation", "model_update")
    return profiler, sampler


def test_a_compile_begins_the_warm_up_anew():
    """So many calls after it, nothing is sampled."""
    _, sampler = make_sampler()
    for _ in range(NUM_WARM_UP_CALLS - 1):
        assert sampler.mark_call() is None
    sampler.warm_up()
    for _ in range(NUM_WARM_UP_CALLS - 1):
        assert sampler.mark_call() is None
    assert sampler._thread is None


def test_a_profile_that_somebody_else_takes_is_left_alone(tmp_path):
    """The sampler does without its sample, and tries again later."""
    capture = start_capture(tmp_path, "mine", 1)
    try:
        profiler = TrainingProfiler(log_to_wandb=False)
        train(profile_make_step(my_step, profiler=profiler), 30)
        assert profiler.wait(60)
        assert profiler.not_sampled_yet() == ["loss_fn_computation", "model_update"]
    finally:
        capture.cancel()


def report(**phases):
    return SimpleNamespace(phases=phases)


def test_all_under_a_gradient_is_the_loss():
    """Forward, backward and what is computed again; the rest is the update where it has no scope."""
    assert split_step(report(forward=1.0, backward=2.0, recompute=0.5, other=0.5)) == (3.5, 0.5, 4.0)


def test_an_update_with_a_scope_is_what_lies_under_it():
    """What is neither loss nor update belongs to neither."""
    assert split_step(report(forward=1.0, backward=2.0, optimizer=0.5, other=0.5)) == (3.0, 0.5, 4.0)


def test_a_step_without_a_gradient_is_given_up(caplog):
    """After a few samples it is said why there is no share, once, and none is taken any more."""
    _, sampler = make_sampler()
    for _ in range(MAX_FAILURES):
        sampler._take_in(SimpleNamespace(report=report(other=1.0), error=""))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "under a gradient" in caplog.text
    for _ in range(3 * NUM_WARM_UP_CALLS):
        sampler.mark_call()
    assert sampler._thread is None


def test_a_program_of_another_name_is_looked_for_without_it():
    """A step that XLA calls otherwise is sampled all the same the next time."""
    _, sampler = make_sampler()
    sampler._take_in(SimpleNamespace(report=None, error="program='jit_my_step': not executed"))
    assert (sampler._program, sampler._num_failures) == (None, 0)


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
    params, _, x = arguments(8)
    step(params, x, profile_jax_loss_fn(my_loss, "mine", profiler))
    assert sorted(profiler.not_sampled_yet()) == ["mine", "model_update"]
