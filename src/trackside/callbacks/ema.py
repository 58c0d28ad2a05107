"""An exponential moving average of the parameters, kept by the step itself, and evaluation on it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from trackside.callbacks.callback import Callback, CallbackConfig
from trackside.callbacks.trainer_view import TrainerView
from trackside.errors import ConfigError


class EMAState(NamedTuple):
    """The average so far."""

    average: Any


def keep_average(decay: float) -> optax.GradientTransformation:
    """Leaves the updates as they are, and keeps the average of the parameters that they lead to.

    It is part of the optimizer, so the average is placed as the parameters are, costs no call of its own, and is saved
    and restored with the optimizer's state.
    """

    def init(params: Any) -> EMAState:
        return EMAState(jax.tree.map(lambda param: jnp.array(param, _wide(param), copy=True), params))

    def update(updates: Any, state: EMAState, params: Any = None) -> tuple[Any, EMAState]:
        new = optax.apply_updates(params, updates)
        average = jax.tree.map(
            lambda old, param: old * decay + param.astype(old.dtype) * (1 - decay), state.average, new
        )
        return updates, EMAState(average)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


def _wide(param: Any) -> Any:
    """At least float32: in bfloat16, a thousandth of a parameter is lost."""
    return jnp.float32 if param.dtype.itemsize < 4 else param.dtype


def find_average(opt_state: Any) -> Any:
    """The average in an optimizer's state, if it keeps one."""
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, EMAState))
    return next((leaf.average for leaf in leaves if isinstance(leaf, EMAState)), None)


@dataclass
class EMAConfig(CallbackConfig):
    """How slowly the average follows."""

    decay: float = 0.999
    """The weight of the old average in each step."""
    evaluate: bool = True
    """Whether validation, test and prediction use the average."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.decay < 1:
            raise ConfigError(f"EMAConfig.decay: expected a number from 0 to below 1, got {self.decay}")


class EMA(Callback, config=EMAConfig):
    """Keeps an average of the parameters, and evaluates on it."""

    config: EMAConfig

    def __init__(self, config: EMAConfig | None = None, trainer: TrainerView | None = None, data_module: Any = None):
        super().__init__(config, trainer, data_module)
        if trainer is not None:
            self.bind(trainer)

    def bind(self, trainer: TrainerView) -> None:
        """Make the trainer's optimizer keep the average, unless it does already."""
        super().bind(trainer)
        if find_average(trainer.state.opt_state) is None:
            trainer.extend_optimizer(keep_average(self.config.decay), average_of if self.config.evaluate else None)


def average_of(state: Any) -> Any:
    """The average in a state, in the parameters' own precision; None if it keeps none."""
    average = find_average(state.opt_state)
    if average is None:
        return None
    return jax.tree.map(lambda param, mean: mean.astype(param.dtype), state.params, average)
