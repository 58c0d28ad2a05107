"""What a subclass of the trainer may override: the loss, the steps of the set-up, and the hooks."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from trackside.callbacks import Callback, CallbackConfig
from trackside.clock import Clock
from trackside.errors import DataError
from trackside.logger import Logger, LoggerConfig
from trackside.logger.run_log import opens_runs, without_opening_runs
from trackside.measured_run.run_folder import choose_run_folder
from trackside.metrics import MetricLayout, Metrics
from trackside.processes import Processes
from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import OTHER
from trackside.profiling.sentinel import RecompileSentinel
from trackside.text import a_type
from trackside.trainer.background_program import may_compile_in_background
from trackside.trainer.batch_placement import BatchPlacement
from trackside.trainer.compile_cache import CompileCache
from trackside.trainer.engine import Engine
from trackside.trainer.evaluation import Evaluator
from trackside.trainer.gradients import LossEvaluator
from trackside.trainer.inflight_window import smallest_window
from trackside.trainer.init_state import init_carry
from trackside.trainer.lr_schedules import build_schedule
from trackside.trainer.measurements import TrainMeasurements
from trackside.trainer.models import ModelConfig, adapter_for, build_model
from trackside.trainer.models.casting import Casting
from trackside.trainer.models.remat import build_remat
from trackside.trainer.optimizer import OptimizerConfig, build_optimizer
from trackside.trainer.parameter_groups import freeze
from trackside.trainer.precision import PrecisionConfig, to_precision
from trackside.trainer.progress import Progress
from trackside.trainer.read_ahead import AheadPlan
from trackside.trainer.run_configs import RunConfigs
from trackside.trainer.sharding import build_mesh
from trackside.trainer.step_functions import EvalStep, TrainStep, build_eval_step, build_train_step
from trackside.trainer.train_state import TrainState
from trackside.trainer.trainer_config import TrainerConfig

LOGGER = logging.getLogger(__name__)

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
    optimizer_config: OptimizerConfig
    clock: Clock
    processes: Processes
    ledger: Ledger
    sentinel: RecompileSentinel
    compile_cache: CompileCache | None
    exmp_batch: Any
    engine_class: type[Engine] = Engine
    """What the compiled calls are made by."""
    _evaluation_params: Callable[[Any], Any] | None

    @property
    def precision(self) -> PrecisionConfig | None:
        """The types in which the model is kept and computes; None for those that it has."""
        return to_precision(self.trainer_config.precision)

    @property
    def _casting(self) -> Casting | None:
        return None if self.precision is None else self.precision.casting()

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

    def evaluate_loss(self, params: Any, mutable_variables: Any, batch: Any, rng: Any, train: bool = True) -> Any:
        """The loss of a batch for a state's variables: calls `loss_function` with the apply function.

        Args:
            params: The parameters.
            mutable_variables: The current batch statistics and the like.
            batch: The batch.
            rng: The key of this step.
            train: Whether this is a training step.

        Returns:
            As `loss_function`.
        """
        return self.loss_function(params, self._bind(mutable_variables, rng), batch, rng, train=train)

    def _predict_step(self, state: TrainState, batch: Any) -> Any:
        """The model's outputs for a batch."""
        apply_fn = self._bind(state.mutable_variables, jax.random.key(self.trainer_config.seed_eval))
        return self.adapter.predict(apply_fn, state.params, self.batch_to_input(batch))

    @staticmethod
    def batch_to_input(batch: Any) -> Any:
        """The model's input in a batch. Override where `batch.inputs` is not it.

        Return a tuple for a model whose `__call__` takes several inputs.
        """
        try:
            return batch.inputs
        except AttributeError:
            raise DataError(
                f"batch: {a_type(batch)} has no `inputs`; override batch_to_input to say what the model gets"
            ) from None

    @staticmethod
    def get_model_rng(rng: Any) -> dict[str, Any]:
        """The keys that the model gets, at initialization and in each step. Override for models that need others.

        Args:
            rng: The key to derive them from.
        """
        params_rng, dropout_rng = jax.random.split(rng)
        return {"params": params_rng, "dropout": dropout_rng}

    def get_metric_postprocess_fn(self) -> HostMetricsFn:
        """The function that rows of metrics pass through on the host; returns them unchanged by default."""
        return unchanged

    # --- the steps of the set-up --------------------------------------------------------------------------------------

    def init_logger(self, logger_config: LoggerConfig | None) -> None:
        """Set up the logger and its directory. Without a config, nothing is logged anywhere.

        A run that is to be continued is not touched before training begins.

        Args:
            logger_config: Where to log. `self.trainer_config` gets the folder that was chosen.
        """
        continues, wanted = False, None if logger_config is None else logger_config.log_path
        if logger_config is not None and opens_runs():
            resume = self.trainer_config.resume
            logger_config, continues = choose_run_folder(logger_config, resume, self.processes, self.clock)
            if logger_config.log_path != wanted:
                self.trainer_config = dataclasses.replace(self.trainer_config, logger=logger_config)
        postprocess = self.get_metric_postprocess_fn()
        with without_opening_runs() if continues else contextlib.nullcontext():
            self.logger = Logger(
                logger_config if logger_config is not None else LoggerConfig(),
                metric_postprocess_fn=None if postprocess is unchanged else postprocess,
                process_index=self.processes.index,
                clock=self.clock,
                ledger=self.ledger,
            )
        self.folder_of_config = wanted
        """The run's folder as the config named it; the run has another if that held one already."""
        if wanted is not None and "{time}" not in str(wanted) and self.logger.log_path != wanted:
            LOGGER.info("%s holds a run already; this one goes to %s", wanted, self.logger.log_path)

    def build_run_configs(self) -> RunConfigs:
        """What is written of the configs, with the run and with each checkpoint."""
        return RunConfigs(self.trainer_config, self.model_config, self.optimizer_config)

    def init_mesh(self, model_config: ModelConfig, mesh: Mesh | None = None) -> None:
        """Set up the device mesh, unless one is given: `self.mesh`, `self.batch_partition_specs`."""
        self.mesh = build_mesh(model_config.parallel, mesh)
        microbatches = self.trainer_config.gradient_accumulate_steps
        self.placement = BatchPlacement(self.mesh, self.exmp_batch, microbatches, self.processes)
        self.batch_partition_specs = self.placement.specs

    def build_model(self, model_config: ModelConfig) -> None:
        """Build the model from its config: `self.model`."""
        self.model = build_model(model_config)

    def init_adapter(self) -> None:
        """Find out how to call the model, with its precision and its remat: `self.adapter`."""
        remat = build_remat(self.trainer_config.remat, self.trainer_config.remat_policy)
        self.adapter = adapter_for(self.model, self.model_config, self._casting, remat)

    def init_optimizer(self, optimizer_config: OptimizerConfig) -> None:
        """Build the optimizer: `self.tx`."""
        self.tx = build_optimizer(optimizer_config)
        self.schedule = build_schedule(optimizer_config.scheduler)

    def init_model(self, exmp_input: Any) -> None:
        """Create the training state with new parameters, spread over the mesh: `self.state`.

        Args:
            exmp_input: An input to the model from which shapes are inferred.
        """
        first = init_carry(
            self.adapter,
            self.tx,
            self.run_model_init,
            exmp_input,
            self.trainer_config.seed,
            self.mesh,
            self.model_config.parallel,
            self.sentinel.named,
            self.precision,
        )
        self.carry_shardings = first.shardings
        if may_compile_in_background(self.trainer_config.debug, self.processes):
            first.begin(self.ledger, self.compile_cache)
            self.progress = Progress(first)
        else:
            self.progress = Progress(first.make())

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
        return build_train_step(
            self.trainer_config, LossEvaluator(self._loss_of_unfrozen, modes, self._casting), self.optimizer_config
        )

    def _loss_of_unfrozen(self, params: Any, mutable_variables: Any, batch: Any, rng: Any, train: bool) -> Any:
        params = freeze(self.optimizer_config, params)
        return self.evaluate_loss(params, mutable_variables, batch, rng, train=train)

    def create_evaluation_step_function(self) -> EvalStep:
        """The function `eval_step(state, batch, metrics) -> metrics`. Override for your own step."""
        return build_eval_step(self.trainer_config, LossEvaluator(self.evaluate_loss, casting=self._casting))

    def create_jitted_functions(self) -> None:
        """Create the step functions; `train_step` and `eval_step` are jitted unless in debug mode."""
        config = self.trainer_config
        self.engine = engine = self.engine_class(
            self.mesh,
            self.adapter,
            self.tx,
            self.carry_shardings,
            self.placement,
            self.create_training_step_function(),
            self.create_evaluation_step_function(),
            train_log_modes=tuple(config.default_train_log_modes),
            donate=config.donate_train_state,
            debug=config.debug,
            fsdp_min_weight_size=self.model_config.parallel.fsdp_min_weight_size,
            evaluation_params=self._evaluation_params,
            processes=self.processes,
        )
        self.train_step, self.eval_step = engine.train_step, engine.eval_step
        if not config.debug:
            self.train_step = jax.jit(self.train_step, donate_argnums=(0,) if config.donate_train_state else ())
            self.eval_step = jax.jit(self.eval_step)
        watch = None if config.debug else self.sentinel.watch
        window = smallest_window(config.max_inflight_steps)
        ahead = AheadPlan(config.prefetch_batches, config.prefetch_max_bytes)
        self.evaluator = Evaluator(engine, window, watch, config.steps_per_call, ahead, self.clock.now)
        self.measurements = TrainMeasurements(engine, self.progress, self.logger)
        """What is known of the steps, in addition to their metrics."""
        self._train_metric_shapes: MetricLayout | None = None
        self._eval_metric_shapes: MetricLayout | None = None

    def init_train_metrics(self, batch: Any = None) -> Metrics:
        """Training metrics before any step. Their form is learned by tracing the step, so that it compiles only once.

        Args:
            batch: A batch from which shapes are inferred; the example batch if left out.
        """
        if self._train_metric_shapes is None or batch is not None:
            batch = self.exmp_batch if batch is None else batch
            self._train_metric_shapes = self.engine.train_layout(self.progress.form, batch)
        return Metrics(self._train_metric_shapes)

    def init_eval_metrics(self, batch: Any = None) -> Metrics:
        """Evaluation metrics before any batch; see `init_train_metrics`."""
        if self._eval_metric_shapes is None or batch is not None:
            batch = self.exmp_batch if batch is None else batch
            self._eval_metric_shapes = self.engine.eval_layout(self.progress.form, batch)
        return Metrics(self._eval_metric_shapes)

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
