"""The step of the JAX loop, compiled on flat leaves.

`equinox.filter_jit` sorts and hashes the whole model at every call, which takes longer than a small step. Here model,
state, optimizer state and key are taken apart once, and what crosses jit afterwards is one list of arrays. The arrays
are donated, so that each step works in place; the first ones are copies, since the user's model stays the user's.

Every call returns one small vector that is never an input: the loss, and statistics of each gradient. It is what the
loop waits on to bound the steps in flight.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trackside.decoding.decoding_step import LossFunction, apply_step, predict, value_and_grad
from trackside.errors import ConfigError, DataError
from trackside.optional import require


class FlatStep:
    """A training, step by step, and what can be asked about it in between.

    Args:
        model: An Equinox model.
        state: Its state, or None.
        filter_spec: Which of its leaves are trained.
        loss_fn: The loss.
        opt: An optax optimizer.
        opt_state: Its state.
        key: The random key of the training; each step splits off its own.

    Raises:
        ConfigError: Nothing is trained, or `opt_state` is not that of the trained leaves.
    """

    def __init__(
        self, model: Any, state: Any, filter_spec: Any, loss_fn: LossFunction, opt: Any, opt_state: Any, key: jax.Array
    ):
        self._eqx = require("equinox", "train_decoding_jax")
        self._filter_spec, self._loss_fn, self._opt = filter_spec, loss_fn, opt
        self.names = self._trained_names(model)
        """The trained leaves, by their paths in the model."""
        self._check_opt_state(model, opt_state)
        arrays, self._static = self._eqx.partition((model, *_on_device((state, opt_state, key))), self._eqx.is_array)
        leaves, self._structure = jax.tree.flatten(arrays)
        self.leaves: list[jax.Array] = [leaf.copy() for leaf in leaves]
        """All arrays that the training changes. Those of the step before are gone."""
        self.call = jax.jit(self._make_step, donate_argnums=0)
        """`leaves, report = call(leaves, inputs, targets)`; the leaves given are gone."""
        self._evaluate = jax.jit(self._loss_and_predictions)
        self._param_statistics = jax.jit(lambda leaves: statistics(self._trained(self._assemble(leaves)[0])))

    def model_and_state(self) -> tuple[Any, Any]:
        """The model as it is now, and its state. The next step takes their arrays away."""
        return self._assemble(self.leaves)[:2]

    def evaluate(self, inputs: Any, targets: Any, key: jax.Array) -> tuple[float, np.ndarray]:
        """Loss and predictions of the model in inference mode, on some samples."""
        value, predictions = self._evaluate(self.leaves, inputs, targets, key)
        return float(value), np.asarray(predictions)

    def check_predictions(self, inputs: Any, targets: Any, name: str) -> None:
        """Find out before training whether the model can be evaluated on a data set.

        Args:
            inputs: The inputs of the data set.
            targets: Its targets.
            name: What the user calls it, for the error.

        Raises:
            DataError: The predictions will not have the shape of the targets.
        """
        key = jax.random.PRNGKey(0)
        predictions = jax.eval_shape(self._loss_and_predictions, self.leaves, inputs, targets, key)[1]
        if predictions.shape != targets.shape:
            raise DataError(
                f"{name}: the model predicts shape {predictions.shape} and the targets have shape {targets.shape}"
            )

    def param_statistics(self) -> np.ndarray:
        """The `STATISTICS` of each trained leaf, one row per leaf."""
        return np.asarray(self._param_statistics(self.leaves))

    def _make_step(self, leaves: list[jax.Array], inputs: Any, targets: Any) -> tuple[list[jax.Array], jax.Array]:
        model, state, opt_state, key = self._assemble(leaves)
        key, step_key = jax.random.split(key)
        model, state, opt_state, value, grads = apply_step(
            model, state, self._filter_spec, inputs, targets, self._loss_fn, self._opt, opt_state, step_key
        )
        report = jnp.concatenate([value.astype(jnp.float32)[None], statistics(grads).ravel()])
        return self._take_apart(model, state, opt_state, key), report

    def _loss_and_predictions(self, leaves: list[jax.Array], inputs: Any, targets: Any, key: jax.Array) -> Any:
        model, state, _, _ = self._assemble(leaves)
        model = self._eqx.nn.inference_mode(model)
        params, static = self._eqx.partition(model, self._filter_spec)
        predictions, _ = predict(model, state, inputs, key)
        # The gradient is not used, and not computed.
        (value, _), _ = value_and_grad(self._loss_fn, params, static, state, inputs, targets, key)
        return value, predictions

    def _assemble(self, leaves: list[jax.Array]) -> tuple[Any, Any, Any, jax.Array]:
        return self._eqx.combine(jax.tree.unflatten(self._structure, leaves), self._static)

    def _take_apart(self, *carried: Any) -> list[jax.Array]:
        leaves, structure = jax.tree.flatten(self._eqx.filter(carried, self._eqx.is_array))
        if structure != self._structure:
            raise ConfigError(
                f"loss_fn: a step changed the structure of model, state or optimizer state from {self._structure} to "
                f"{structure}. It has to return them in the form in which it got them"
            )
        return leaves

    def _trained(self, model: Any) -> Any:
        return self._eqx.filter(self._eqx.filter(model, self._filter_spec), self._eqx.is_inexact_array)

    def _trained_names(self, model: Any) -> list[str]:
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(self._trained(model))]
        if not paths:
            raise ConfigError("filter_spec: selects no floating-point array of the model, so there is nothing to train")
        return [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]

    def _check_opt_state(self, model: Any, opt_state: Any) -> None:
        expected = self._eqx.filter_eval_shape(self._opt.init, self._eqx.filter(model, self._filter_spec))
        if jax.tree.structure(expected) != jax.tree.structure(opt_state):
            raise ConfigError(
                "opt_state: is not the state of this optimizer for the leaves that filter_spec selects. "
                "Make it with opt.init(equinox.filter(model, filter_spec))"
            )


def _on_device(tree: Any) -> Any:
    """The tree with numpy arrays made JAX's: a step returns JAX arrays, and the form must stay the same."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf, tree)


def statistics(tree: Any) -> jax.Array:
    """The `STATISTICS` of each array on the device, one row per array."""
    return jnp.stack([_row(leaf) for leaf in jax.tree.leaves(tree)])


def _row(leaf: jax.Array) -> jax.Array:
    values = (jnp.abs(leaf) if jnp.iscomplexobj(leaf) else leaf).astype(jnp.float32)
    return jnp.stack([values.mean(), values.std(), jnp.sqrt(jnp.sum(values * values)), jnp.abs(values).max()])
