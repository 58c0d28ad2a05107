import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trackside.errors import ConfigError
from trackside.profiling import TrainingProfiler, profile_jax_loss_fn, profile_make_step
from trackside.profiling.compiles import compile_counter
from trackside.testing import assert_no_recompiles

pytestmark = pytest.mark.usefixtures("no_compile_cache")


def my_loss(params, x):
    return jnp.mean(jnp.tanh(x @ params) ** 2)


def my_make_step(params, x, loss_fn):
    value, grads = jax.value_and_grad(loss_fn)(params, x)
    return params - 0.1 * grads, value


def arguments():
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(8, 8)), jnp.float32), rng.normal(size=(4, 8)).astype(np.float32)


@pytest.fixture
def profiler():
    return TrainingProfiler(log_to_wandb=False)


def train(step, loss_fn, num_steps=5):
    params, x = arguments()
    for _ in range(num_steps):
        params, value = step(params, x, loss_fn() if loss_fn.__name__ == "<lambda>" else loss_fn)
    return np.asarray(params), np.asarray(value)


def counts(profiler):
    assert profiler.wait(300)
    return {name: entry["count"] for name, entry in profiler.get_summary().items()}


def test_a_profiled_step_neither_recompiles_nor_changes_results(profiler):
    """Even with a new wrapper for each step: no more compiles than without, and bit-identical parameters."""
    step, counter = jax.jit(my_make_step, static_argnums=2), compile_counter()
    plain = train(step, my_loss)
    num_compiles = counter.num_compiles
    profiled = train(profile_make_step(step, profiler=profiler), lambda: profile_jax_loss_fn(my_loss, "my", profiler))
    assert counter.num_compiles == num_compiles > 0
    assert all(np.array_equal(one, other) for one, other in zip(plain, profiled, strict=True))
    assert counts(profiler) == {"make_step_total": 5, "make_step_total_dispatch": 5}


def test_a_step_that_is_not_profiled_compiles_once_with_a_profiled_loss(profiler):
    """As it does with the loss itself, although each step gets a new wrapper."""
    plain = train(jax.jit(my_make_step, static_argnums=2), my_loss)
    with assert_no_recompiles():
        profiled = train(
            jax.jit(my_make_step, static_argnums=2), lambda: profile_jax_loss_fn(my_loss, profiler=profiler)
        )
    assert all(np.array_equal(one, other) for one, other in zip(plain, profiled, strict=True))
    assert counts(profiler) == {}


def test_wrapping_the_same_function_again_gives_the_same_wrapper(profiler):
    """Also around a wrapper; another name is another operation."""
    loss = profile_jax_loss_fn(my_loss, profiler=profiler)
    assert profile_jax_loss_fn(loss, profiler=profiler) is loss
    assert profile_jax_loss_fn(my_loss, "other", profiler) is not loss
    step = jax.jit(my_make_step, static_argnums=2)
    profiled = profile_make_step(step, profiler=profiler)
    assert profile_make_step(step, profiler=profiler) is profiled


def test_a_loss_that_is_called_by_itself_is_timed(profiler):
    """As in the guide: value and gradient, until they are computed."""
    params, x = arguments()
    loss = profile_jax_loss_fn(jax.value_and_grad(my_loss), "my_loss_computation", profiler)
    value, grads = loss(params, x)
    assert (value.shape, grads.shape) == ((), (8, 8))
    assert counts(profiler) == {"my_loss_computation": 1, "my_loss_computation_dispatch": 1}


def test_tracing_a_loss_is_never_its_time(profiler):
    """Inside of a jitted step it is awaited, under the name that it was given, and shown as not sampled yet."""
    step = profile_make_step(jax.jit(my_make_step, static_argnums=2), profiler=profiler)
    train(step, profile_jax_loss_fn(my_loss, "my_loss", profiler), num_steps=2)
    assert "my_loss" not in counts(profiler)
    assert sorted(profiler.not_sampled_yet()) == ["model_update", "my_loss"]


def test_after_a_reset_a_step_is_awaited_when_it_is_next_called(profiler, capsys):
    """What is profiled then and has no such step, as in PyTorch, is not shown with what a step before left open."""
    step = profile_make_step(jax.jit(my_make_step, static_argnums=2), profiler=profiler)
    train(step, my_loss, num_steps=2)
    assert profiler.wait(300)
    profiler.reset()
    with profiler.time("forward"):
        pass
    profiler.log_metrics(1)
    assert "not sampled yet" not in capsys.readouterr().out
    train(step, my_loss, num_steps=1)
    assert profiler.not_sampled_yet() == ["loss_fn_computation", "model_update"]


def test_a_step_that_is_not_jitted_as_a_whole_has_its_loss_measured(profiler):
    """The loss is called in it for real, so that nothing has to be sampled."""
    gradient = jax.jit(jax.value_and_grad(my_loss))

    def my_step(params, x, loss_fn):
        value, grads = loss_fn(params, x)
        return params - 0.1 * grads, value

    train(profile_make_step(my_step, profiler=profiler), profile_jax_loss_fn(gradient, profiler=profiler), num_steps=3)
    found = counts(profiler)
    assert (found["make_step_total"], found["loss_fn_computation"]) == (3, 3)
    assert profiler.not_sampled_yet() == []


def test_a_plain_step_around_a_jitted_one_awaits_its_loss(profiler):
    """Under the name of the loss that it is given; the loss is traced in it, so that only samples can show it."""
    jitted = jax.jit(my_make_step, static_argnums=2)
    step = profile_make_step(lambda params, x, loss_fn: jitted(params, x, loss_fn), profiler=profiler)
    train(step, profile_jax_loss_fn(my_loss, "my_loss", profiler), num_steps=2)
    assert sorted(profiler.not_sampled_yet()) == ["model_update", "my_loss"]
    assert counts(profiler) == {"make_step_total": 2, "make_step_total_dispatch": 2}


def test_a_plain_step_is_sampled(profiler):
    """Such as one that computes the gradient and the update in two jitted functions."""
    gradient, update = jax.jit(jax.value_and_grad(my_loss)), jax.jit(lambda params, grads: params - 0.1 * grads)

    def my_step(params, x):
        value, grads = gradient(params, x)
        return update(params, grads), value

    step = profile_make_step(my_step, profiler=profiler)
    params, x = arguments()
    for _ in range(200_000):
        params, value = step(params, x)
        value.block_until_ready()
        if not profiler.sampled.awaited():
            break
    summary = profiler.get_summary()
    assert 0 < summary["loss_fn_computation"]["step_share"] < 1
    assert summary["model_update"]["step_share"] == pytest.approx(1 - summary["loss_fn_computation"]["step_share"])


def test_a_step_without_arrays_of_jax_awaits_nothing(profiler):
    """Nothing of it could be sampled."""
    step = profile_make_step(lambda: 3.0, profiler=profiler)
    for _ in range(30):
        step()
    assert profiler.not_sampled_yet() == []


@pytest.mark.parametrize("returns", ["loss", "loss inside", "parameters only"])
def test_donated_outputs_do_no_harm(profiler, returns):
    """Whatever is donated to the next call, all calls are counted and training works."""

    def step(state, x):
        params, value = my_make_step(state["params"], x, my_loss)
        state = {"params": params}
        return {"loss": (state, value), "loss inside": (state, {"loss": value}), "parameters only": state}[returns]

    profiled = profile_make_step(jax.jit(step, donate_argnums=0), profiler=profiler)
    params, x = arguments()
    state = {"params": params}
    for _ in range(20):
        output = profiled(state, x)
        state = output if returns == "parameters only" else output[0]
    assert np.isfinite(np.asarray(state["params"])).all()
    assert counts(profiler)["make_step_total"] == 20


def test_equinox_steps_and_losses_work_as_they_are(profiler):
    """filter_jit around filter_value_and_grad, which is a tree to JAX: one compile, the same results."""

    @eqx.filter_value_and_grad
    def loss(params, x):
        return my_loss(params, x)

    @eqx.filter_jit
    def make_step(params, x, loss_fn):
        value, grads = loss_fn(params, x)
        return params - 0.1 * grads, value

    plain = train(make_step, loss)
    profiled_loss = profile_jax_loss_fn(loss, profiler=profiler)
    with assert_no_recompiles():
        other = train(make_step, profiled_loss)
    with assert_no_recompiles(after_warm_up=True):
        profiled = train(profile_make_step(make_step, profiler=profiler), profiled_loss)
    assert np.array_equal(plain[0], profiled[0])
    assert np.array_equal(plain[0], other[0])
    assert counts(profiler)["make_step_total"] == 5


def test_a_step_under_jit_is_not_counted(profiler):
    """A profiled step that another function traces is just a function."""
    step = profile_make_step(jax.jit(my_make_step, static_argnums=2), profiler=profiler)
    params, x = arguments()
    jax.jit(lambda params, x: step(params, x, my_loss))(params, x)
    assert counts(profiler) == {}


def test_switched_off_a_profiled_step_is_the_step(profiler):
    """Wrapped losses are taken out, and nothing is counted."""
    profiler.enabled = False
    step = jax.jit(my_make_step, static_argnums=2)
    plain = train(step, my_loss)
    profiled = train(profile_make_step(step, profiler=profiler), profile_jax_loss_fn(my_loss, profiler=profiler))
    assert np.array_equal(plain[0], profiled[0])
    assert counts(profiler) == {}


def test_a_step_that_raises_is_counted(profiler):
    """The exception is the user's."""
    step = profile_make_step(jax.jit(my_make_step, static_argnums=2), profiler=profiler)
    params, x = arguments()
    with pytest.raises(TypeError):
        step(params, x[:, :3], my_loss)
    assert counts(profiler)["make_step_total"] == 1


def step_of(profiler, name):
    """The name of the step that an operation was sampled in."""
    return profiler.sampled.step_name(name)


def test_two_steps_have_a_loss_and_an_update_each(profiler):
    """As in a training of two networks: the second one's are prefixed with the name of its step."""
    first = profile_make_step(jax.jit(my_make_step, static_argnums=2), "generator_step", profiler)
    second = profile_make_step(jax.jit(my_make_step, static_argnums=2), "critic_step", profiler)
    own = ["loss_fn_computation", "model_update"]
    assert profiler.not_sampled_yet() == [*own, "critic_step_loss_fn_computation", "critic_step_model_update"]
    assert step_of(profiler, "model_update") == "generator_step"
    assert step_of(profiler, "critic_step_model_update") == "critic_step"
    del first
    gc.collect()
    third = profile_make_step(jax.jit(my_make_step, static_argnums=2), "third_step", profiler)
    assert step_of(profiler, "model_update") == "third_step"
    del second, third


def test_names_stay_after_a_reset(profiler):
    """Whichever of two steps is called first after it, each name is of the step that it was of."""
    first = profile_make_step(jax.jit(my_make_step, static_argnums=2), "generator_step", profiler)
    second = profile_make_step(jax.jit(my_make_step, static_argnums=2), "critic_step", profiler)
    profiler.reset()
    params, x = arguments()
    second(params, x, my_loss)
    first(params, x, my_loss)
    assert step_of(profiler, "loss_fn_computation") == "generator_step"
    assert step_of(profiler, "critic_step_loss_fn_computation") == "critic_step"


def test_a_profiler_that_is_dropped_is_gone(profiler):
    """With its thread, and what the step returned last."""
    own = TrainingProfiler(log_to_wandb=False)
    step = profile_make_step(jax.jit(lambda x: (x * 0.999, x.sum())), profiler=own)
    step(jnp.ones(1000))
    reference = weakref.ref(own)
    assert own.wait(300)
    del own, step
    gc.collect()
    assert reference() is None


def test_a_large_output_is_not_kept(profiler):
    """What a step returned is the user's to free."""
    step = profile_make_step(jax.jit(lambda x: x * 2.0), profiler=profiler)
    output = step(jnp.ones(1 << 20))
    reference = weakref.ref(output)
    assert profiler.wait(300)
    del output
    gc.collect()
    assert reference() is None


def test_a_step_that_returns_no_array_is_timed_until_it_returns(profiler):
    """Such as one that only prints: there is nothing to wait for."""
    step = profile_make_step(jax.jit(lambda x: None), profiler=profiler)
    for _ in range(3):
        step(jnp.ones(3))
    assert counts(profiler)["make_step_total"] == 3


def test_many_short_steps_are_all_counted_and_none_twice(profiler):
    """Even if only some are watched: counted twice, they would take twice the time that has passed."""
    step = profile_make_step(jax.jit(lambda x: (x * 0.999, x.sum())), profiler=profiler)
    x, _ = step(jnp.ones(1000))
    profiler.wait(300)
    profiler.reset()
    for _ in range(1000):
        x, _ = step(x)
    found = profiler.get_summary()["make_step_total"]
    assert found["count"] == 1000
    assert 0 < found["wall_share"] <= 1


def test_a_summary_counts_every_call_so_far(profiler):
    """Right after the loop, whatever the device is still computing."""
    step = profile_make_step(jax.jit(lambda x: (x @ x / 256.0, x.sum())), profiler=profiler)
    x = jnp.ones((256, 256))
    for _ in range(100):
        x, _ = step(x)
    assert profiler.get_summary()["make_step_total"]["count"] == 100


@pytest.mark.parametrize("wrap", [profile_jax_loss_fn, profile_make_step])
@pytest.mark.parametrize(("function", "name", "message"), [(3, "loss", "expected a function"), (my_loss, 3, "name")])
def test_bad_arguments_are_refused(wrap, function, name, message):
    """The error names the argument."""
    with pytest.raises(ConfigError, match=message):
        wrap(function, name)
