"""One training step of an Equinox model: `mse_loss`, `make_step`, and what the loop accepts as a loss.

A model is called as `model(input, state, key)` with one sample and returns `(prediction, state)`. A loss gets the model
in two parts, what is trained and the rest, as `equinox.partition(model, filter_spec)` makes them, and is called as

    (value, state), grads = loss_fn(model_params, model_static, state, inputs, targets, key)

which is what `equinox.filter_value_and_grad(has_aux=True)` makes of a function that returns `(value, state)`. The
function itself works as well: it is differentiated here.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from trackside.errors import MetricError
from trackside.optional import require
from trackside.text import a_type

LossFunction = Callable[..., Any]
"""A loss, differentiated or not, as this module describes."""

_FORMS = "Return (value, state), or differentiate that with equinox.filter_value_and_grad(has_aux=True)"


def predict(model: Any, state: Any, inputs: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
    """The model's predictions for a batch, one key per sample, and its new state."""
    keys = jax.random.split(key, inputs.shape[0])
    return jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))(inputs, state, keys)


def mse_loss(model_params: Any, model_static: Any, state: Any, inputs: Any, targets: Any, key: jax.Array) -> Any:
    """Mean squared error of a batch, and its gradient. Compiled, and usable within other compiled functions.

    Args:
        model_params: The part of the model that is trained.
        model_static: The rest of it.
        state: The model's state; None for a model that has none.
        inputs: A batch of inputs, samples first.
        targets: What to predict for them, of the same shape as the predictions.
        key: A random key, split among the samples.

    Returns:
        `((value, state), grads)`: the error, the model's new state, and the gradient in the form of `model_params`.

    Raises:
        MetricError: Predictions and targets differ in shape, so that their difference would be something else.
    """
    return _compiled_mse_loss()(model_params, model_static, state, inputs, targets, key)


@functools.cache
def _compiled_mse_loss() -> Callable[..., Any]:
    eqx = require("equinox", "mse_loss")

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def loss(model_params: Any, model_static: Any, state: Any, inputs: Any, targets: Any, key: jax.Array) -> Any:
        predictions, state = predict(eqx.combine(model_params, model_static), state, jnp.asarray(inputs), key)
        if predictions.shape != targets.shape:
            raise MetricError(
                f"mse_loss: the model predicts shape {predictions.shape} and the targets have shape {targets.shape}"
            )
        return jnp.mean((predictions - targets) ** 2), state

    return loss


def make_step(
    model: Any,
    state: Any,
    filter_spec: Any,
    inputs: Any,
    targets: Any,
    loss_fn: LossFunction,
    opt: Any,
    opt_state: Any,
    key: jax.Array,
) -> tuple[Any, Any, Any, jax.Array, Any]:
    """Train a model on one batch. Compiled; for your own loops.

    Args:
        model: An Equinox model.
        state: Its state; None for a model that has none.
        filter_spec: Which of its leaves are trained, as for `equinox.partition`.
        inputs: A batch of inputs, samples first.
        targets: What to predict for them.
        loss_fn: The loss, such as `mse_loss`.
        opt: An optax optimizer.
        opt_state: Its state, from `opt.init(equinox.filter(model, filter_spec))`.
        key: A random key for this step.

    Returns:
        Model, state and optimizer state after the step, and the loss and gradient of it.
    """
    return _compiled_make_step()(model, state, filter_spec, inputs, targets, loss_fn, opt, opt_state, key)


@functools.cache
def _compiled_make_step() -> Callable[..., Any]:
    return require("equinox", "make_step").filter_jit(apply_step)


def apply_step(
    model: Any,
    state: Any,
    filter_spec: Any,
    inputs: Any,
    targets: Any,
    loss_fn: LossFunction,
    opt: Any,
    opt_state: Any,
    key: jax.Array,
) -> tuple[Any, Any, Any, jax.Array, Any]:
    """`make_step`, not compiled by itself."""
    eqx = require("equinox", "make_step")
    params, static = eqx.partition(model, filter_spec)
    (value, state), grads = value_and_grad(loss_fn, params, static, state, inputs, targets, key)
    with jax.numpy_dtype_promotion("standard"):  # optax counts on it, whatever the model lives by
        updates, opt_state = opt.update(grads, opt_state, params)
    return eqx.apply_updates(model, updates), state, opt_state, value, grads


def value_and_grad(loss_fn: LossFunction, *args: Any) -> Any:
    """Call a loss that is differentiated, or differentiate it and call it.

    Raises:
        MetricError: The loss is of neither form, or not a scalar.
    """
    eqx = require("equinox", "make_step")
    try:
        form = eqx.filter_eval_shape(loss_fn, *args)
        if not (isinstance(form, tuple) and len(form) == 2):
            raise MetricError(f"loss_fn: returned {a_type(form)}. {_FORMS}")
        is_differentiated = isinstance(form[0], tuple)
        _check_scalar(form[0][0] if is_differentiated else form[0])
        return loss_fn(*args) if is_differentiated else eqx.filter_value_and_grad(loss_fn, has_aux=True)(*args)
    except TypeError as error:
        if "scalar" not in str(error):
            raise
        raise MetricError(f"loss_fn: its value is not a scalar, take a mean or a sum of it ({error})") from error


def _check_scalar(value: Any) -> None:
    shape = getattr(value, "shape", None)
    if shape is None:
        raise MetricError(f"loss_fn: its value is {a_type(value)}, not a scalar array. {_FORMS}")
    if shape != ():
        raise MetricError(f"loss_fn: its value has shape {tuple(shape)}. It has to be a scalar: take a mean or a sum")
