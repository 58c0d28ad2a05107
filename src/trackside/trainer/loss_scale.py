"""Dynamic loss scaling: float16 has no room for small gradients, so the loss is scaled up and gradients back down.

The scale is doubled after a number of steps whose gradients were finite, and halved after one whose gradients were not.
Such a step is skipped: it leaves everything as it was, except for the step count, from which the random numbers of the
next step come. Only if gradients are not finite at the smallest scale is something else wrong with them.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trackside.config import ConfigDict
from trackside.errors import ConfigError


@dataclass
class LossScaleConfig(ConfigDict):
    """How the scale of the loss changes. Powers of 2 change no digit of a gradient."""

    initial: float = 2.0**15
    """The scale of the first step."""
    factor: float = 2.0
    """What the scale is multiplied by when it grows, and divided by after an overflow."""
    growth_interval: int = 2000
    """After how many finite steps in a row the scale grows."""
    smallest: float = 1.0
    """The scale at which gradients that are not finite are an error of the model and no overflow."""
    largest: float = 2.0**24
    """The scale does not grow beyond it."""

    def __post_init__(self) -> None:
        if not 0 < self.smallest <= self.initial <= self.largest:
            raise ConfigError(
                f"LossScaleConfig: expected 0 < smallest <= initial <= largest, got {self.smallest}, {self.initial}, "
                f"{self.largest}"
            )
        if not self.factor > 1:
            raise ConfigError(f"LossScaleConfig.factor: expected more than 1, got {self.factor}")
        if self.growth_interval < 1:
            raise ConfigError(
                f"LossScaleConfig.growth_interval: expected a positive number, got {self.growth_interval}"
            )


class LossScale(NamedTuple):
    """The scale, as a part of the training state."""

    scale: Any
    num_finite: Any
    """Finite steps since the scale changed last."""


def first_loss_scale(config: LossScaleConfig) -> LossScale:
    """The scale of the first step."""
    return LossScale(jnp.asarray(config.initial, jnp.float32), jnp.zeros((), jnp.int32))


def next_loss_scale(config: LossScaleConfig, now: LossScale, finite: jax.Array) -> LossScale:
    """The scale of the next step.

    Args:
        config: How it changes.
        now: The scale of this step.
        finite: Whether loss and gradients of this step were finite.
    """
    num_finite = now.num_finite + 1
    grows = finite & (num_finite >= config.growth_interval)
    larger = jnp.minimum(now.scale * config.factor, config.largest)
    smaller = jnp.maximum(now.scale / config.factor, config.smallest)
    scale = jnp.where(finite, jnp.where(grows, larger, now.scale), smaller)
    return LossScale(scale, jnp.where(finite & ~grows, num_finite, 0))


def is_overflow(config: LossScaleConfig, now: LossScale, finite: jax.Array) -> jax.Array:
    """Whether a step was not finite, and a smaller scale may help."""
    return ~finite & (now.scale > config.smallest)


def scaled(loss: jax.Array, scale: jax.Array | None) -> jax.Array:
    """The loss to differentiate."""
    return loss if scale is None else loss.astype(jnp.float32) * scale


def unscaled(grads: Any, scale: jax.Array | None) -> Any:
    """The gradients of the loss itself, in their own types."""
    if scale is None:
        return grads
    return jax.tree.map(lambda grad: (grad.astype(jnp.float32) / scale).astype(grad.dtype), grads)
