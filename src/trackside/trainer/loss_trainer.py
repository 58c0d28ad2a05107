"""The full trainer of a model and a loss function, which is behind the short one."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from trackside.errors import ConfigError, MetricError
from trackside.text import a_type
from trackside.trainer.models import ModelConfig
from trackside.trainer.optimizer import OptimizerConfig
from trackside.trainer.run_configs import RunConfigs
from trackside.trainer.sharding import ParallelConfig
from trackside.trainer.train_state import TrainState
from trackside.trainer.trainer import TrainerModule
from trackside.trainer.trainer_config import TrainerConfig

_RETURNS = "loss_fn: expected it to return loss, or loss and a dict of metrics"


class Loss:
    """A user's loss function: what it takes, and what it returns."""

    def __init__(self, loss_fn: Callable[..., Any], predict_fn: Callable[..., Any] | None):
        self.loss_fn = loss_fn
        self.predict_fn = predict_fn
        parameters = parameters_of(loss_fn)
        self.takes_train = "train" in parameters
        self.takes_state = "state" in parameters

    def check_state(self, passes_state: bool) -> None:
        """Raise if the function and the model disagree about who passes the state on."""
        if passes_state and not self.takes_state:
            raise ConfigError(
                "loss_fn: the model has a state; write `def loss_fn(model, batch, rng, state)` and return "
                "`loss, metrics, state`"
            )
        if self.takes_state and not passes_state:
            raise ConfigError("loss_fn: it takes `state`, but this model keeps its state itself; leave it out")

    def __call__(self, model: Any, batch: Any, rng: Any, train: bool, state: Any) -> tuple[Any, dict[str, Any], Any]:
        """Loss, metrics and the new state of a batch."""
        kwargs: dict[str, Any] = {"train": train} if self.takes_train else {}
        if self.takes_state:
            kwargs["state"] = state
        returned = self.loss_fn(model, batch, rng, **kwargs)
        parts = list(returned) if isinstance(returned, tuple) else [returned]
        new_state = parts.pop() if self.takes_state and len(parts) > 1 else None
        if len(parts) not in (1, 2) or (len(parts) == 2 and not isinstance(parts[1], Mapping)):
            shown = ", ".join(type(part).__name__ for part in parts)
            raise MetricError(f"{_RETURNS}{', and the state last' if self.takes_state else ''}; got ({shown})")
        return parts[0], dict(parts[1]) if len(parts) == 2 else {}, new_state


def parameters_of(function: Callable) -> Mapping[str, Any]:
    """The parameters of a function by name; none where they cannot be found out."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


class Spec:
    """What a short trainer was given."""

    def __init__(self, model: Any, loss: Loss, optimizer: Any, inputs: Callable[[Any], Any] | None):
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.inputs = inputs

    def describe(self) -> dict[str, str]:
        """Names of what cannot be written to a config."""
        model = self.model[0] if isinstance(self.model, tuple) else self.model
        named = {"model": model, "loss_fn": self.loss.loss_fn}
        return {name: getattr(one, "__qualname__", type(one).__qualname__) for name, one in named.items()}


class LossTrainer(TrainerModule):
    """The full trainer of a model and a loss function.

    Args:
        spec: What the short trainer was given.
        trainer_config: How to train.
        parallel: The mesh.
        batch: An example batch.
    """

    def __init__(self, spec: Spec, trainer_config: TrainerConfig, parallel: ParallelConfig, batch: Any):
        self._spec = spec
        optimizer = spec.optimizer if isinstance(spec.optimizer, OptimizerConfig) else OptimizerConfig()
        super().__init__(trainer_config, ModelConfig(parallel=parallel), optimizer, batch)
        spec.loss.check_state(self.adapter.passes_state)

    def build_run_configs(self) -> RunConfigs:
        """Without the configs that were not given, and with the names of what was."""
        is_known = isinstance(self._spec.optimizer, OptimizerConfig)
        return RunConfigs(self.trainer_config, None, self.optimizer_config if is_known else None, self._spec.describe())

    def build_model(self, model_config: ModelConfig) -> None:
        """Take the model that was given."""
        self.model = self._spec.model
        if isinstance(self.model, type):
            raise ConfigError(
                f"model: expected a model that is built, got the class {self.model.__name__}; call it, or pass a "
                "function such as `lambda rngs: Model(rngs=rngs)` (NNX) or `lambda key: Model(key=key)` (Equinox)"
            )

    def init_optimizer(self, optimizer_config: OptimizerConfig) -> None:
        """Take the optimizer that was given."""
        if isinstance(self._spec.optimizer, OptimizerConfig):
            super().init_optimizer(optimizer_config)
            return
        self.tx, self.schedule = self._spec.optimizer, _unknown_learning_rate

    def batch_to_input(self, batch: Any) -> Any:  # type: ignore[override]
        """What the model gets of a batch."""
        if self._spec.inputs is not None:
            return self._spec.inputs(batch)
        found = _find_inputs(batch)
        if found is None and self.adapter.library in ("linen", "functions"):
            raise _unknown_inputs(batch)
        return batch if found is None else found

    def evaluate_loss(self, params: Any, mutable_variables: Any, batch: Any, rng: Any, train: bool = True) -> Any:
        """The loss of a batch, by the function that was given."""

        def body(model: Any, state: Any) -> tuple[Any, Any]:
            loss, metrics, state = self._spec.loss(model, batch, rng, train, state)
            return (loss, metrics), state

        keys = self.get_model_rng(rng)
        (loss, metrics), updates = self.adapter.use(params, mutable_variables or {}, keys, train, body)
        return loss, (metrics, updates)

    def _predict_step(self, state: TrainState, batch: Any) -> Any:
        predict_fn = self._spec.loss.predict_fn
        if predict_fn is None:
            if self._spec.inputs is None and _find_inputs(batch) is None:
                raise _unknown_inputs(batch)
            try:
                return super()._predict_step(state, batch)
            except TypeError as error:
                if "required" not in str(error):
                    raise
                raise _needs_more(error, self._spec.loss.takes_state) from error
        rng = jax.random.key(self.trainer_config.seed_eval)

        def body(model: Any, model_state: Any) -> tuple[Any, Any]:
            given = {"state": model_state} if "state" in parameters_of(predict_fn) else {}
            return predict_fn(model, batch, rng, **given), model_state

        return self.adapter.use(state.params, state.mutable_variables or {}, self.get_model_rng(rng), False, body)[0]


def _needs_more(error: TypeError, takes_state: bool) -> ConfigError:
    arguments = "model, batch, rng, state" if takes_state else "model, batch, rng"
    return ConfigError(
        f"predict: the model takes more than the inputs of a batch ({error}); say how it is called with "
        f"`Trainer(..., predict_fn=...)`, a function of {arguments} that gives the outputs for a batch"
    )


def _unknown_inputs(batch: Any) -> ConfigError:
    return ConfigError(
        f"inputs: what the model gets of {a_type(batch)} is not known; say it, for example "
        "`Trainer(..., inputs=lambda batch: batch['image'])`"
    )


def _find_inputs(batch: Any) -> Any:
    if hasattr(batch, "inputs"):
        return batch.inputs
    if isinstance(batch, Mapping):
        return next((batch[name] for name in ("inputs", "x") if name in batch), None)
    if isinstance(batch, tuple | list) and batch:
        return batch[0]
    return batch if isinstance(batch, jax.Array | np.ndarray | jax.ShapeDtypeStruct) else None


def _unknown_learning_rate(step: Any) -> float:
    del step
    raise ConfigError(
        "learning rate: not known for an optax optimizer; pass an OptimizerConfig to log it, or keep your schedule"
    )
