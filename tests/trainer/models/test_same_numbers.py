"""A network with the same weights has the same losses in every library, and in a loop that is written by hand."""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.trainer.models import transformers
from tests.trainer.models.libraries import KITS, NUM_INPUTS, WIDTH, EquinoxNet, NnxNet, apply_fn, make_data
from trackside.callbacks import Callback
from trackside.trainer import ParallelConfig, Trainer, TrainerConfig

DATA = make_data(num_batches=20)
WEIGHTS = {
    name: {
        "kernel": np.random.default_rng(seed).standard_normal(shape, np.float32) / 2,
        "bias": np.full(shape[-1], 0.1, np.float32),
    }
    for seed, (name, shape) in enumerate({"first": (NUM_INPUTS, WIDTH), "last": (WIDTH, 1)}.items())
}


@pytest.fixture(autouse=True)
def optax_as_it_is() -> Iterator[None]:
    """Optax's own optimizers do not live with strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def losses_by_hand(loss_of: Callable[[Any, Any], Any], weights: Any, data: list[Any]) -> list[float]:
    """The losses of a loop with nothing around it."""
    with jax.numpy_dtype_promotion("standard"):
        tx = optax.adam(1e-2)

        @jax.jit
        def step(params: Any, opt_state: Any, batch: Any) -> Any:
            loss, grads = jax.value_and_grad(loss_of)(params, batch)
            updates, opt_state = tx.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, loss

        params, losses = jax.tree.map(jnp.asarray, weights), []
        opt_state = tx.init(params)
        for batch in data:
            params, opt_state, loss = step(params, opt_state, batch)
            losses.append(float(loss))
    return losses


@pytest.fixture(scope="module")
def by_hand() -> list[float]:
    """The losses of the network."""
    return losses_by_hand(
        lambda params, batch: ((apply_fn(params, batch["x"]) - batch["y"]) ** 2).mean(), WEIGHTS, DATA
    )


def linen_weights(trainer: Trainer) -> Any:
    return trainer.build(DATA[0]).restore_model({"params": WEIGHTS})


def make_nnx() -> Any:
    model = NnxNet(rngs=nnx.Rngs(0))
    for layer, weights in WEIGHTS.items():
        for name, value in weights.items():
            getattr(getattr(model, layer), name)[...] = jnp.asarray(value)
    return model


def make_equinox() -> Any:
    model = EquinoxNet(key=jax.random.key(0))
    for layer, weights in WEIGHTS.items():
        model = eqx.tree_at(
            lambda m, at=layer: (getattr(m, at).weight, getattr(m, at).bias),
            model,
            (jnp.asarray(weights["kernel"].T), jnp.asarray(weights["bias"])),
        )
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "linen": KITS["linen"].plain,
    "nnx": make_nnx,
    "equinox": make_equinox,
    "functions": lambda: (lambda key, inputs: jax.tree.map(jnp.asarray, WEIGHTS), apply_fn),
}


class Losses(Callback):
    """Remembers the loss of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        self.values.append(step_metrics["loss"])


def losses_of(trainer: Trainer, data: list[Any]) -> list[float]:
    losses = Losses()
    trainer.fit(data, num_epochs=1, callbacks=[losses])
    return losses.values


def make_trainer(model: Any, loss: Callable) -> Trainer:
    config, one_device = TrainerConfig(enable_progress_bar=False), ParallelConfig(data_axis_size=1)
    return Trainer(model, loss, optax.adam(1e-2), config=config, parallel=one_device)


@pytest.mark.parametrize("library", MODELS)
def test_losses_are_those_of_the_loop_by_hand(library: str, by_hand: list[float]) -> None:
    """Over twenty steps, no library's losses leave those of the plain loop."""
    trainer = make_trainer(MODELS[library](), KITS[library].loss)
    if library == "linen":
        linen_weights(trainer)
    np.testing.assert_allclose(losses_of(trainer, DATA), by_hand, rtol=1e-4)


def cross_entropy(logits: Any, batch: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


TOKENS = transformers.make_token_data(20)


@pytest.fixture(scope="module")
def transformer_by_hand() -> list[float]:
    """The losses of the transformer."""
    weights = transformers.make_weights()
    losses = losses_by_hand(
        lambda p, batch: cross_entropy(transformers.apply_fn(p, batch["x"]), batch), weights, TOKENS
    )
    assert losses[-1] != losses[0]
    return losses


@pytest.mark.parametrize("library", transformers.MODELS)
def test_transformer_has_the_losses_of_the_loop_by_hand(library: str, transformer_by_hand: list[float]) -> None:
    """Over twenty steps, a transformer of each library's own layers has the losses of plain functions in a loop."""

    def loss(model: Any, batch: Any, rng: Any) -> Any:
        return cross_entropy((jax.vmap(model) if library == "equinox" else model)(batch["x"]), batch)

    trainer = make_trainer(transformers.MODELS[library], loss)
    weights = transformers.make_weights()
    params = transformers.for_equinox(weights) if library == "equinox" else weights
    trainer.build(TOKENS[0]).restore_model({"params": params})
    np.testing.assert_allclose(losses_of(trainer, TOKENS), transformer_by_hand, rtol=1e-4)
