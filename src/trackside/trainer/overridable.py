"""What a subclass of the trainer may override: the loss, the steps of the set-up, and the hooks."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from trackside.callbacks import Callback, CallbackConfig
from trackside.errors import DataError
from trackside.processes import Processes
from trackside.profiling.ledger import OTHER
from trackside.trainer.batch_placement import BatchPlacement
from trackside.trainer.gradients import LossEvaluator
from trackside.trainer.init_state import init_carry
from trackside.trainer.lr_schedules import build_schedule
from trackside.trainer.models import ModelAdapter, ModelConfig, build_module
from trackside.trainer.optimizer import OptimizerConfig, build_optimizer
from trackside.trainer.progress import Progress
from trackside.trainer.sharding import build_mesh
from trackside.trainer.step_functions import EvalStep, TrainStep, build_eval_step, build_train_step
from trackside.trainer.trainer_config import TrainerConfig

HostMetricsFn = Callable[[dict[str, float]], dict[str, float]]


def unchanged(host_metrics: dict[str, float]) -> dict[str, float]:
    """The metrics as they are."""
    return host_metrics


class Overridable:
    """Methods that a trainer may override. Each hook is called before the callbacks' hook of the same name.

    The steps of the set-up are called in the order in which they stand here. What each sets is named in its docstring.
    """

    trainer_config: TrainerConfig
    model_config: ModelConfig
    processes: Processes
    exmp_batch: Any
    adapter: ModelAdapter

    # --- the model's side of a step -----------------------------------------------------------------------------------

    def loss_function(self, params: Any, apply_fn: Callable, batch: Any, rng: Any, train: bool = True) -> Any:
        """The loss of a batch. Has to be overridden.

        Args:
            params: The parameters.
            apply_fn: The model's apply function, to which `{"params": params}` is enough.
            batch: The batch.
            rng: The key of this step.
            train: Whether this is a training step.

        Returns:
            The loss, and a tuple of step metrics and mutable variables (None if there are none).
        """
        raise NotImplementedError(f"{type(self).__name__} has to define loss_function")

    @staticmethod
    def batch_to_input(batch: Any) -> Any:
        """The model's input in a batch. Override where `batch.inputs` is not it.

        Return a tuple for a model whose `__call__` takes several inputs.
        """
        try:
            return batch.inputs
        except AttributeError:
            raise DataError(
                f"batch: a {type(batch).__name__} has no `inputs`; override batch_to_input to say what the model gets"
            ) from None

    @staticmethod
    def get_model_rng(rng: Any) -> dict[str, Any]:
        """The keys that the model gets, at initialisation and in each step. Override for models that need others.

        Args:
            rng: The key to derive them from.
        """
        params_rng, dropout_rng = jax.random.split(rng)
        return {"params": params_rng, "dropout": dropout_rng}

    def get_metric_postprocess_fn(self) -> HostMetricsFn:
        """The function that rows of metrics pass through on the host; returns them unchanged by default."""
        return unchanged

    # --- the steps of the set-up --------------------------------------------------------------------------------------

    def init_mesh(self, model_config: ModelConfig, mesh: Mesh | None = None) -> None:
        """Set up the device mesh, unless one is given: `self.mesh`, `self.batch_partition_specs`."""
        self.mesh = build_mesh(model_config.parallel, mesh)
        microbatches = self.trainer_config.gradient_accumulate_steps
        self.placement = BatchPlacement(self.mesh, self.exmp_batch, microbatches, self.processes)
        self.batch_partition_specs = self.placement.specs

    def build_model(self, model_config: ModelConfig) -> None:
        """Build the model from its config: `self.model`."""
        self.model = build_module(model_config)

    def init_optimizer(self, optimizer_config: OptimizerConfig) -> None:
        """Build the optimizer: `self.tx`."""
        self.tx = build_optimizer(optimizer_config)
        self.schedule = build_schedule(optimizer_config.scheduler)

    def init_model(self, exmp_input: Any) -> None:
        """Create the training state with new parameters, spread over the mesh: `self.state`.

        Args:
            exmp_input: An input to the model from which shapes are inferred.
        """
        carry, self.carry_shardings = init_carry(
            self.adapter,
            self.tx,
            self.run_model_init,
            exmp_input,
            self.trainer_config.seed,
            self.mesh,
            self.model_config.parallel.fsdp_min_weight_size,
        )
        self.progress = Progress(carry)

    def run_model_init(self, exmp_input: Any, init_rng: Any) -> dict[str, Any]:
        """Make the model's variables.

        Args:
            exmp_input: An input to the model.
            init_rng: The key to derive the model's keys from.

        Returns:
            The collections by name, with the parameters under `params`.
        """
        return self.adapter.init(self.get_model_rng(init_rng), exmp_input)

    def create_training_step_function(self) -> TrainStep:
        """The function `train_step(state, batch, metrics) -> (state, metrics)`. Override for your own step."""
        modes = tuple(self.trainer_config.intermediates_log_modes) if self.trainer_config.log_intermediates else None
        return build_train_step(self.trainer_config, LossEvaluator(self.loss_function, self._bind, modes))

    def create_evaluation_step_function(self) -> EvalStep:
        """The function `eval_step(state, batch, metrics) -> metrics`. Override for your own step."""
        return build_eval_step(self.trainer_config, LossEvaluator(self.loss_function, self._bind))

    def _bind(self, mutable_variables: Any, rng: Any) -> Callable:
        return self.adapter.bind(mutable_variables, self.get_model_rng(rng))

    # --- hooks --------------------------------------------------------------------------------------------------------

    def on_training_start(self) -> None:
        """Called before training starts, for additional set-up."""

    def on_training_end(self) -> None:
        """Called after training has finished."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Called at the start of each training epoch.

        Args:
            epoch_idx: Index of the epoch, from 1.
        """

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Called at the end of each training epoch.

        Args:
            train_metrics: The epoch's metrics. What is added here is logged as well.
            epoch_idx: Index of the epoch.
        """

    def on_validation_epoch_start(self, epoch_idx: int, step_idx: int) -> None:
        """Called at the start of each validation.

        Args:
            epoch_idx: Index of the training epoch.
            step_idx: Index of the training step.
        """

    def on_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        """Called at the end of each validation.

        Args:
            eval_metrics: The metrics. What is added here is logged as well.
            epoch_idx: Index of the training epoch.
            step_idx: Index of the training step.
        """

    def on_test_epoch_start(self, epoch_idx: int) -> None:
        """Called at the start of each test.

        Args:
            epoch_idx: Index of the training epoch.
        """

    def on_test_epoch_end(self, test_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Called at the end of each test.

        Args:
            test_metrics: The metrics. What is added here is logged as well.
            epoch_idx: Index of the training epoch.
        """


class OwnHooks(Callback):
    """The trainer's own hooks as a callback, the first of all.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: Overridable):
        super().__init__(CallbackConfig())
        self.described_as = type(trainer).__name__
        self.on_training_start = trainer.on_training_start
        self.on_training_end = trainer.on_training_end
        self.on_training_epoch_start = trainer.on_training_epoch_start
        self.on_training_epoch_end = trainer.on_training_epoch_end
        self.on_validation_epoch_start = trainer.on_validation_epoch_start
        self.on_validation_epoch_end = trainer.on_validation_epoch_end
        self.on_test_epoch_start = trainer.on_test_epoch_start
        self.on_test_epoch_end = trainer.on_test_epoch_end

    @property
    def ledger_part(self) -> str:
        """Hooks of the trainer are no callback's time."""
        return OTHER
