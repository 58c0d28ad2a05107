"""The examples of the profiling guide, as they are written there but for the import, with an Equinox model."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from trackside.profiling import (
    TrainingProfiler,
    get_profiler,
    log_profiling_metrics,
    profile_data_loader,
    profile_jax_loss_fn,
    profile_make_step,
    profile_operation,
)

pytestmark = pytest.mark.usefixtures("no_compile_cache")


@pytest.fixture(autouse=True)
def own_profiler(monkeypatch):
    """A process-wide profiler that is not shared with other tests."""
    monkeypatch.setattr("trackside.profiling.timers.training_profiler._global", None)


@eqx.filter_value_and_grad(has_aux=True)
def my_loss_fn(model_params, model_static, state, inputs, targets, key):
    model = eqx.combine(model_params, model_static)
    return jnp.mean((jax.vmap(model)(inputs) - targets) ** 2), state


@eqx.filter_jit
def my_make_step(model, state, filter_spec, inputs, targets, loss_fn, opt, opt_state, key):
    model_params, model_static = eqx.partition(model, filter_spec)
    (value, state), grads = loss_fn(model_params, model_static, state, inputs, targets, key)
    updates, opt_state = opt.update(grads, opt_state, model_params)
    return eqx.apply_updates(model, updates), state, opt_state, value, grads


@pytest.fixture
def setting():
    model, opt = eqx.nn.Linear(3, 2, key=jr.key(0)), optax.sgd(0.1)
    filter_spec = jax.tree.map(eqx.is_inexact_array, model)
    inputs, targets = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    opt_state = opt.init(eqx.filter(model, eqx.is_inexact_array))
    return model, filter_spec, inputs, targets, opt, opt_state, jr.key(1)


def counts():
    profiler = get_profiler()
    assert profiler.wait(300)
    return {name: entry["count"] for name, entry in profiler.get_summary().items()}


def test_using_the_profiler_directly(capsys):
    """A start, an end and the metrics on the console."""
    profiler = get_profiler()
    start_time = profiler.start_timer("my_operation")
    profiler.end_timer("my_operation", start_time)
    log_profiling_metrics()
    assert re.search(r"my_operation: avg=\d\.\d{4}s, total=\d\.\d\ds, count=1\n", capsys.readouterr().out)


def test_using_decorators():
    """A hundred calls are a hundred counts."""

    @profile_operation("expensive_function")
    def my_expensive_function(data):
        return data + 1

    for i in range(100):
        result = my_expensive_function(i)
    assert (result, counts()) == (100, {"expensive_function": 100})


def test_profiling_data_loaders():
    """Each batch is a count."""
    profiled_loader = profile_data_loader([1, 2, 3])
    for _batch in profiled_loader:
        pass
    assert counts() == {"data_batch_production": 3}


def test_profiling_jax_loss_functions(setting):
    """Value, state and gradients come back, and the loss has its time."""
    model, filter_spec, inputs, targets, _, _, key = setting
    model_params, model_static = eqx.partition(model, filter_spec)
    profiled_loss_fn = profile_jax_loss_fn(my_loss_fn, "my_loss_computation")
    (value, state), grads = profiled_loss_fn(model_params, model_static, "state", inputs, targets, key)
    assert (value.shape, state, grads.weight.shape) == ((), "state", (2, 3))
    assert counts() == {"my_loss_computation": 1, "my_loss_computation_dispatch": 1}


def test_profiling_make_step(setting):
    """The step gets the profiled loss as well as its own, trains alike, and is compiled once."""
    model, filter_spec, inputs, targets, opt, opt_state, key = setting
    profiled_make_step = profile_make_step(my_make_step)
    state = jnp.zeros(())
    for loss_fn in (my_loss_fn, profile_jax_loss_fn(my_loss_fn)):
        model, state, opt_state, value, grads = profiled_make_step(
            model, state, filter_spec, inputs, targets, loss_fn, opt, opt_state, key
        )
    assert np.isfinite(value)
    assert isinstance(grads, eqx.nn.Linear)
    assert counts() == {"make_step_total": 2, "make_step_total_dispatch": 2}


def test_profiler_settings():
    """The settings are those that were given."""
    profiler = TrainingProfiler(
        log_to_wandb=True,  # Whether to log to wandb
        log_every=100,  # How often to log metrics
    )
    assert (profiler.log_to_wandb, profiler.log_every) == (True, 100)


def test_the_global_profiler():
    """It can be reset and asked for a summary."""
    profiler = get_profiler()
    with profiler.time("my_operation"):
        pass
    profiler.reset()
    assert profiler.get_summary() == {}
