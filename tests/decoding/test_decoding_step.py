import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.problem import JaxProblem
from trackside.decoding import make_step, mse_loss
from trackside.errors import MetricError
from trackside.profiling import TrainingProfiler, profile_jax_loss_fn, profile_make_step


@pytest.fixture
def problem():
    return JaxProblem()


def plain_loss(params, static, state, inputs, targets, key):
    predictions, _ = jax.vmap(eqx.combine(params, static), in_axes=(0, None, None))(inputs, None, key)
    return jnp.mean((predictions - targets) ** 2), state


def step(problem, loss_fn, function=make_step, **changes):
    given = problem.arguments | changes
    inputs, targets = given["train_loader"][0]
    return function(
        given["model"],
        given["state"],
        given["filter_spec"],
        inputs,
        targets,
        loss_fn,
        given["opt"],
        given["opt_state"],
        given["key"],
    )


def test_mse_loss_gives_value_state_and_gradient(problem):
    """The value is the mean squared error, the state that of the model, the gradient has the form of the parameters."""
    inputs, targets = problem.arguments["train_loader"][0]
    params, static = eqx.partition(problem.model, eqx.is_inexact_array)
    (value, state), grads = mse_loss(params, static, problem.arguments["state"], inputs, targets, jax.random.PRNGKey(0))
    predictions = inputs @ np.asarray(problem.model.layer.weight).T + np.asarray(problem.model.layer.bias)
    assert float(value) == pytest.approx(np.mean((predictions - targets) ** 2), rel=1e-5)
    assert int(state["num_steps"]) == 1
    assert jax.tree.structure(grads) == jax.tree.structure(params)


def test_the_loss_of_a_profiled_step_is_awaited(problem):
    """A step is a plain function around a compiled one; its loss is sampled like that of any other."""
    profiler = TrainingProfiler(log_to_wandb=False)
    step(problem, profile_jax_loss_fn(mse_loss, profiler=profiler), profile_make_step(make_step, profiler=profiler))
    assert profiler.not_sampled_yet() == ["loss_fn_computation", "model_update"]


def test_mse_loss_refuses_to_broadcast(problem):
    """Targets of another shape than the predictions would give a mean of something else."""
    inputs, targets = problem.arguments["train_loader"][0]
    params, static = eqx.partition(problem.model, eqx.is_inexact_array)
    with pytest.raises(MetricError, match=r"predicts shape \(8, 2\) and the targets have shape \(8, 1\)"):
        mse_loss(params, static, None, inputs, targets[:, :1], jax.random.PRNGKey(0))


def test_a_step_lowers_the_loss(problem):
    """The model that comes back is better on the same batch."""
    model, state, opt_state, value, grads = step(problem, mse_loss)
    *_, next_value, _ = step(problem, mse_loss, model=model, state=state, opt_state=opt_state)
    assert float(next_value) < float(value)
    assert float(jnp.abs(grads.layer.weight).max()) > 0


def test_a_loss_may_be_differentiated_or_not(problem):
    """Both forms give the same step."""
    plain = step(problem, plain_loss)
    differentiated = step(problem, eqx.filter_value_and_grad(plain_loss, has_aux=True))
    assert all(map(np.array_equal, jax.tree.leaves(plain), jax.tree.leaves(differentiated)))


def test_frozen_leaves_stay(problem):
    """Only what the filter spec selects is trained."""
    spec = eqx.tree_at(lambda tree: tree.layer.bias, jax.tree.map(eqx.is_inexact_array, problem.model), replace=False)
    opt_state = problem.opt.init(eqx.filter(problem.model, spec))
    model, *_ = step(problem, mse_loss, filter_spec=spec, opt_state=opt_state)
    assert np.array_equal(model.layer.bias, problem.model.layer.bias)
    assert not np.array_equal(model.layer.weight, problem.model.layer.weight)


def vector_loss(params, static, state, inputs, targets, key):
    predictions, _ = jax.vmap(eqx.combine(params, static), in_axes=(0, None, None))(inputs, None, key)
    return jnp.mean((predictions - targets) ** 2, axis=0), state


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (vector_loss, r"its value has shape \(2,\)"),
        (eqx.filter_value_and_grad(vector_loss, has_aux=True), "its value is not a scalar"),
        (lambda *args: plain_loss(*args)[0], r"returned a .*Return \(value, state\)"),
        (lambda *args: ("loss", None), "its value is a str"),
    ],
    ids=["vector", "differentiated vector", "no state", "text"],
)
def test_what_is_no_loss_is_refused(problem, loss_fn, message):
    """The error says what it gave and what it should give."""
    with pytest.raises(MetricError, match=message):
        step(problem, loss_fn)
