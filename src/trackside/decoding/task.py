"""What is trained to decode: model, loss, optimizer and key, as `train_decoding_jax` is given them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from trackside.decoding.data import Pair
from trackside.decoding.decoding_step import LossFunction, apply_step, predict, value_and_grad
from trackside.errors import ConfigError, DataError
from trackside.optional import require


@dataclass(frozen=True)
class DecodingTask:
    """A model and everything that it is trained with, before the training."""

    model: Any
    state: Any
    """The model's state, or None."""
    filter_spec: Any
    """Which of the model's leaves are trained."""
    loss_fn: LossFunction
    opt: Any
    opt_state: Any
    key: jax.Array
    """The random key of the training; each step splits off its own."""

    def check(self, data: Mapping[str, Pair]) -> None:
        """Find out before training whether the model can be trained, and evaluated on data sets.

        Args:
            data: The data sets by what the user calls them.

        Raises:
            ConfigError: Nothing is trained, or `opt_state` is not that of the trained leaves.
            DataError: The predictions will not have the shape of the targets.
            MetricError: The loss is of a form that it must not have.
        """
        eqx = require("equinox", "train_decoding_jax")
        if not self.trained_names():
            raise ConfigError("filter_spec: selects no floating-point array of the model, so there is nothing to train")
        expected = eqx.filter_eval_shape(self.opt.init, eqx.filter(self.model, self.filter_spec))
        if jax.tree.structure(expected) != jax.tree.structure(self.opt_state):
            raise ConfigError(
                "opt_state: is not the state of this optimizer for the leaves that filter_spec selects. "
                "Make it with opt.init(equinox.filter(model, filter_spec))"
            )
        for name, pair in data.items():
            shape = eqx.filter_eval_shape(self.evaluate, self.model, self.state, pair, jax.random.PRNGKey(0))[1].shape
            if shape != pair.targets.shape:
                raise DataError(
                    f"{name}: the model predicts shape {shape} and the targets have shape {pair.targets.shape}"
                )

    def step(self, model: Any, state: Any, opt_state: Any, pair: Pair, key: jax.Array) -> Any:
        """`make_step` for a batch, not compiled by itself."""
        inputs, targets = pair
        return apply_step(model, state, self.filter_spec, inputs, targets, self.loss_fn, self.opt, opt_state, key)

    def evaluate(self, model: Any, state: Any, pair: Pair, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Loss and predictions of a model in inference mode."""
        eqx = require("equinox", "train_decoding_jax")
        model = eqx.nn.inference_mode(model)
        params, static = eqx.partition(model, self.filter_spec)
        predictions, _ = predict(model, state, pair.inputs, key)
        # The gradient is not used, and not computed.
        (value, _), _ = value_and_grad(self.loss_fn, params, static, state, *pair, key)
        return value, predictions

    def trained(self, model: Any) -> Any:
        """The model's arrays that are trained."""
        eqx = require("equinox", "train_decoding_jax")
        return eqx.filter(eqx.filter(model, self.filter_spec), eqx.is_inexact_array)

    def trained_names(self) -> list[str]:
        """These by their paths in the model."""
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(self.trained(self.model))]
        return [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
