"""One small network in every library: dense, batch norm or none, dropout, dense. With losses for the short trainer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from trackside.trainer import FunctionModel

NUM_INPUTS, WIDTH = 4, 8


class LinenNet(nn.Module):
    """In Flax Linen."""

    rate: float = 0.0
    has_norm: bool = False

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.Dense(WIDTH, name="first")(x)
        if self.has_norm:
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x)
        x = nn.Dropout(self.rate, deterministic=not train)(nn.tanh(x))
        self.sow("intermediates", "mean", x.mean())
        return nn.Dense(1, name="last")(x)


class NnxNet(nnx.Module):
    """In Flax NNX."""

    def __init__(self, rate: float = 0.0, has_norm: bool = False, *, rngs: nnx.Rngs):
        self.first = nnx.Linear(NUM_INPUTS, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, momentum=0.9, rngs=rngs) if has_norm else None
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.last = nnx.Linear(WIDTH, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.first(x)
        if self.norm is not None:
            x = self.norm(x)
        x = self.drop(nnx.tanh(x))
        self.sow(nnx.Intermediate, "mean", x.mean())
        return self.last(x)


class EquinoxNet(eqx.Module):
    """In Equinox, for one example."""

    first: eqx.nn.Linear
    drop: eqx.nn.Dropout
    last: eqx.nn.Linear
    scale: jax.Array
    activation: Callable

    def __init__(self, rate: float = 0.0, *, key: Any):
        first, last = jax.random.split(key)
        self.first = eqx.nn.Linear(NUM_INPUTS, WIDTH, key=first)
        self.drop = eqx.nn.Dropout(rate)
        self.last = eqx.nn.Linear(WIDTH, 1, key=last)
        self.scale = jnp.ones((), jnp.int32)  # an array that is not trained
        self.activation = jnp.tanh

    def __call__(self, x: Any, key: Any = None) -> Any:
        return self.last(self.drop(self.activation(self.first(x)), key=key)) * self.scale.astype(jnp.float32)


class EquinoxNormNet(eqx.Module):
    """In Equinox, with batch norm."""

    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, *, key: Any):
        first, last = jax.random.split(key)
        self.first = eqx.nn.Linear(NUM_INPUTS, WIDTH, key=first)
        self.norm = eqx.nn.BatchNorm(WIDTH, "batch", momentum=0.9, mode="batch")
        self.last = eqx.nn.Linear(WIDTH, 1, key=last)

    def __call__(self, x: Any, state: Any) -> Any:
        x, state = self.norm(self.first(x), state)
        return self.last(jnp.tanh(x)), state


def init_fn(key: Any, inputs: Any) -> dict[str, Any]:
    first, last = jax.random.split(key)
    scale = 1 / np.sqrt(inputs.shape[-1])
    return {
        "first": {"kernel": scale * jax.random.normal(first, (inputs.shape[-1], WIDTH)), "bias": jnp.zeros(WIDTH)},
        "last": {"kernel": 0.3 * jax.random.normal(last, (WIDTH, 1)), "bias": jnp.zeros(1)},
    }


def apply_fn(params: Any, x: Any, rng: Any = None, train: bool = False, rate: float = 0.0) -> Any:
    x = jnp.tanh(x @ params["first"]["kernel"] + params["first"]["bias"])
    if train and rate:
        x = jnp.where(jax.random.bernoulli(rng, 1 - rate, x.shape), x / (1 - rate), 0)
    return x @ params["last"]["kernel"] + params["last"]["bias"]


def apply_with_names(params: Any, x: Any) -> Any:
    with jax.named_scope("first"):
        x = jnp.tanh(x @ params["first"]["kernel"] + params["first"]["bias"])
    with jax.named_scope("last"):
        return x @ params["last"]["kernel"] + params["last"]["bias"]


def apply_with_dropout(params: Any, x: Any, rng: Any = None, train: bool = False) -> Any:
    return apply_fn(params, x, rng, train, 0.5)


def init_with_state(key: Any, inputs: Any) -> Any:
    return init_fn(key, inputs), {"mean": jnp.zeros(WIDTH)}


def apply_with_state(params: Any, state: Any, x: Any, train: bool = False) -> Any:
    x = x @ params["first"]["kernel"] + params["first"]["bias"]
    mean = 0.9 * state["mean"] + 0.1 * x.mean(0) if train else state["mean"]
    return jnp.tanh(x - mean) @ params["last"]["kernel"] + params["last"]["bias"], {"mean": mean}


def mse(model: Any, batch: Any, rng: Any) -> Any:
    """For models that take a batch."""
    return ((model(batch["x"]) - batch["y"]) ** 2).mean()


def mse_of_examples(model: Any, batch: Any, rng: Any) -> Any:
    """For models that take an example and a key."""
    keys = jax.random.split(rng, len(batch["x"]))
    return ((jax.vmap(model)(batch["x"], keys) - batch["y"]) ** 2).mean()


def mse_with_equinox_state(model: Any, batch: Any, rng: Any, state: Any) -> Any:
    mapped = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    output, state = mapped(batch["x"], state)
    return ((output - batch["y"]) ** 2).mean(), state


def mse_with_state(model: Any, batch: Any, rng: Any, state: Any) -> Any:
    output, state = model(state, batch["x"])
    return ((output - batch["y"]) ** 2).mean(), {"mae": abs(output - batch["y"]).mean()}, state


@dataclass(frozen=True)
class Kit:
    """How one library writes the network."""

    plain: Callable[[], Any]
    """Without anything random or stateful."""
    loss: Callable
    dropout: Callable[[], Any]
    """With dropout at 0.5."""
    stateful: Callable[[], Any]
    """With statistics of the batches."""
    stateful_loss: Callable
    built_on_demand: Any
    """What builds the plain network when the trainer is built."""


KITS = {
    "linen": Kit(LinenNet, mse, lambda: LinenNet(0.5), lambda: LinenNet(has_norm=True), mse, LinenNet()),
    "nnx": Kit(
        lambda: NnxNet(rngs=nnx.Rngs(0)),
        mse,
        lambda: NnxNet(0.5, rngs=nnx.Rngs(0)),
        lambda: NnxNet(has_norm=True, rngs=nnx.Rngs(0)),
        mse,
        lambda rngs: NnxNet(rngs=rngs),
    ),
    "equinox": Kit(
        lambda: EquinoxNet(key=jax.random.key(0)),
        mse_of_examples,
        lambda: EquinoxNet(0.5, key=jax.random.key(0)),
        lambda: eqx.nn.make_with_state(EquinoxNormNet)(key=jax.random.key(0)),
        mse_with_equinox_state,
        lambda key: EquinoxNet(key=key),
    ),
    "functions": Kit(
        lambda: (init_fn, apply_fn),
        mse,
        lambda: (init_fn, apply_with_dropout),
        lambda: FunctionModel(init_with_state, apply_with_state, has_state=True),
        mse_with_state,
        (init_fn, apply_fn),
    ),
}


def make_data(num_batches: int = 6, size: int = 8) -> list[dict[str, np.ndarray]]:
    """Batches of a linear problem."""
    x = np.random.default_rng(0).standard_normal((num_batches, size, NUM_INPUTS), np.float32)
    y = x @ np.array([[1.0], [-2.0], [0.5], [3.0]], np.float32)
    return [{"x": x[index], "y": y[index]} for index in range(num_batches)]
