"""Real captures and trainings that differ in one thing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tests.trainer.tiny import make_batch, make_trainer
from trackside.logger import LoggerConfig
from trackside.testing import capture_function

NUM_STEPS = 6


def make_step(
    *, dtype: Any = jnp.float32, has_extra_scope: bool = False
) -> Callable[[dict[str, jax.Array], jax.Array], dict[str, jax.Array]]:
    """A training step with scopes of its own.

    Args:
        dtype: What the encoder computes in.
        has_extra_scope: Whether there is a layer more.
    """

    def loss_of(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        with jax.named_scope("encoder"):
            hidden = jnp.tanh(x.astype(dtype) @ params["kernel"].astype(dtype)).astype(jnp.float32)
        if has_extra_scope:
            with jax.named_scope("extra"):
                hidden = hidden @ params["kernel"]
        with jax.named_scope("head"):
            return (hidden @ params["head"]).mean()

    def step(params: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        gradients = jax.grad(loss_of)(params, x)
        with jax.named_scope("update"):
            return jax.tree.map(lambda param, gradient: param - 0.1 * gradient, params, gradients)

    return jax.jit(step)


def make_chain(*, is_interrupted: bool = False) -> Callable[[jax.Array], jax.Array]:
    """Elementwise operations, which become one kernel unless something stands between them."""

    def chain(x: jax.Array) -> jax.Array:
        with jax.named_scope("activation"):
            x = jnp.sin(x) * 2.0
            if is_interrupted:
                x = jax.pure_callback(lambda value: value, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
            return jnp.abs(x) + 3.0

    return jax.jit(chain)


def capture_step(directory: Path, **options: Any) -> Path:
    """Capture a few steps, and leave the trace."""
    params = {"kernel": jnp.full((32, 32), 0.1), "head": jnp.ones((32, 1))}
    capture_function(make_step(**options), params, jnp.ones((16, 32)), num_steps=NUM_STEPS, directory=directory)
    return directory


def capture_chain(directory: Path, **options: Any) -> Path:
    """Capture a few calls of the chain, and leave the trace."""
    capture_function(make_chain(**options), jnp.ones((64, 64)), num_steps=NUM_STEPS, directory=directory)
    return directory


def train(
    directory: Path, *, batch_sizes: tuple[int, ...] = (8,), num_steps: int = 60, callbacks: Any = (), **options: Any
) -> Path:
    """Train a tiny model that logs each step; batches of the given sizes take turns."""
    loader = [make_batch(batch_sizes[index % len(batch_sizes)], index) for index in range(num_steps)]
    config = LoggerConfig(log_path=directory, log_every_n_steps=1)
    trainer = make_trainer(batch=loader[0], logger=config, **options)
    trainer.fit(loader, callbacks=list(callbacks))
    return directory
