"""Everything that stands before the first step: mesh, model, optimizer, state, step functions, logger."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from trackside.callbacks import CallbackConfig, CallbackList, CheckpointConfig
from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.config import ConfigDict
from trackside.errors import ConfigError, DataError
from trackside.logger import Logger, LoggerConfig
from trackside.metrics import MetricLayout, Metrics
from trackside.metrics.packed import MetricRecorder
from trackside.profiling.ledger import Ledger
from trackside.profiling.sentinel import RecompileSentinel
from trackside.trainer import processes, summary
from trackside.trainer.batch import DataloaderModule
from trackside.trainer.config import TrainerConfig
from trackside.trainer.evaluation import Evaluator
from trackside.trainer.feed import BatchPlacement
from trackside.trainer.gradients import LossEvaluator
from trackside.trainer.hooks import TrainerHooks
from trackside.trainer.init_state import init_carry
from trackside.trainer.learning_rate import build_schedule
from trackside.trainer.loop import Position
from trackside.trainer.models import ModelConfig, build_adapter
from trackside.trainer.optimizer import OptimizerConfig, build_optimizer
from trackside.trainer.run_events import RunEvents
from trackside.trainer.run_lock import check_unlocked
from trackside.trainer.sharding import build_mesh, optimizer_specs, to_shardings
from trackside.trainer.state import TrainState, to_carry, with_carry
from trackside.trainer.step import EvalStep, StepCompiler, TrainStep, build_eval_step, build_train_step, view_carry

LOGGER = logging.getLogger(__name__)

Loaders = Iterable | dict[str, Iterable]
HostMetricsFn = Callable[[dict[str, float]], dict[str, float]]


def runs_here(config: CallbackConfig) -> bool:
    """Whether a callback runs in this process."""
    if isinstance(config, CheckpointConfig) and config.main_process_only and jax.process_count() > 1:
        raise ConfigError(
            "CheckpointConfig.main_process_only=True: with several processes each writes its part of a checkpoint; "
            "leave it False"
        )
    return processes.is_main() or not config.main_process_only


def _unchanged(host_metrics: dict[str, float]) -> dict[str, float]:
    return host_metrics


class TrainerSetup(TrainerHooks):
    """The part of the trainer that builds what training and evaluation run on; `TrainerModule` tells its arguments."""

    clock: Clock = SYSTEM_CLOCK
    """Where the times of ledger, loop and logger come from."""

    def __init__(
        self,
        trainer_config: TrainerConfig,
        model_config: ModelConfig,
        optimizer_config: OptimizerConfig,
        batch: Any,
        mesh: Mesh | None = None,
    ):
        self.trainer_config = ConfigDict.from_dict(TrainerConfig, trainer_config)
        self.model_config = ConfigDict.from_dict(ModelConfig, model_config)
        self.optimizer_config = ConfigDict.from_dict(OptimizerConfig, optimizer_config)
        self.exmp_batch = batch
        self.dataset: DataloaderModule | None = None
        self._train_metric_shapes: MetricLayout | None = None
        self._eval_metric_shapes: MetricLayout | None = None
        self._pruned_state: Any = None
        self.status = ""
        self.ledger = Ledger()
        """Where the time of the last training went."""
        self.events = RunEvents(lambda: self.logger)
        """The rows of the run."""
        self.init_logger(self.trainer_config.logger)
        try:
            self._sentinel = RecompileSentinel(
                self.events, self.trainer_config.max_recompiles, self.trainer_config.on_too_many_recompiles
            )
            self.init_mesh(self.model_config, mesh)
            self.build_model(self.model_config)
            self.init_optimizer(self.optimizer_config)
            self.init_model(self.batch_to_input(batch))
            self.create_jitted_functions()
            self.init_callbacks(self.trainer_config.callbacks)
            self._log_setup()
        except BaseException:
            self.logger.finalize("error")
            raise

    # --- set-up -------------------------------------------------------------------------------------------------

    @staticmethod
    def batch_to_input(batch: Any) -> Any:
        """The model's input in a batch. Override where `batch.inputs` is not it."""
        try:
            return batch.inputs
        except AttributeError:
            raise DataError(
                f"batch: a {type(batch).__name__} has no `inputs`; override batch_to_input to say what the model gets"
            ) from None

    def init_mesh(self, model_config: ModelConfig, mesh: Mesh | None = None) -> None:
        """Set up the device mesh, unless one is given."""
        self.mesh = build_mesh(model_config.parallel, mesh)
        microbatches = self.trainer_config.gradient_accumulate_steps
        self._placement = BatchPlacement(self.mesh, self.exmp_batch, microbatches)
        self.batch_partition_specs = self._placement.specs

    def build_model(self, model_config: ModelConfig) -> None:
        """Build the model from its config."""
        self._adapter = build_adapter(model_config)
        self.model = self._adapter.module
        self._apply_fn = self._adapter.bind(None, None)

    def init_logger(self, logger_config: LoggerConfig | None, opens_now: bool = True) -> None:
        """Set up the logger and its directory. Without a config, nothing is logged anywhere.

        Args:
            logger_config: Where to log.
            opens_now: Whether its files are opened now, and not at the first use.
        """
        if opens_now and logger_config is not None and jax.process_index() == 0:
            check_unlocked(logger_config.log_path)
        postprocess = self.get_metric_postprocess_fn()
        self.logger = Logger(
            logger_config if logger_config is not None else LoggerConfig(),
            metric_postprocess_fn=None if postprocess is _unchanged else postprocess,
            process_index=jax.process_index(),
            opens_now=opens_now,
            clock=self.clock,
        )

    def get_metric_postprocess_fn(self) -> HostMetricsFn:
        """The function that every row of metrics passes through on the host; returns them unchanged by default."""
        return _unchanged

    def init_callbacks(self, callback_configs: list[CallbackConfig]) -> None:
        """Build the callbacks of the trainer config."""
        self.callbacks = CallbackList(
            config.create(self, data_module=self.dataset) for config in callback_configs if runs_here(config)
        )

    def init_optimizer(self, optimizer_config: OptimizerConfig) -> None:
        """Build the optimizer."""
        self.tx = build_optimizer(optimizer_config)
        self._schedule = build_schedule(optimizer_config.scheduler)

    def init_model(self, exmp_input: Any) -> None:
        """Create the training state with new parameters, spread over the mesh.

        Args:
            exmp_input: An input to the model from which shapes are inferred.
        """
        carry, self._carry_shardings = init_carry(
            self._adapter,
            self.tx,
            self.run_model_init,
            exmp_input,
            self.trainer_config.seed,
            self.mesh,
            self.model_config.parallel.fsdp_min_weight_size,
        )
        self._position = Position(carry)
        self._start_step = 0

    def extend_optimizer(self, transform: optax.GradientTransformation) -> None:
        """Let another transformation follow the optimizer, such as one that keeps an average of the parameters.

        The step is compiled anew. To be called before training, or between two trainings.
        """
        carry, specs = self._position.carry, jax.tree.map(lambda sharding: sharding.spec, self._carry_shardings.params)
        minimum = self.model_config.parallel.fsdp_min_weight_size
        abstract = jax.eval_shape(transform.init, carry.params)
        added = to_shardings(self.mesh, optimizer_specs(self.mesh, abstract, carry.params, specs, minimum))
        state = jax.jit(transform.init, out_shardings=added)(carry.params)
        self._position.carry = carry._replace(opt_state=(carry.opt_state, state))
        self._carry_shardings = self._carry_shardings._replace(opt_state=(self._carry_shardings.opt_state, added))
        self.tx = optax.chain(self.tx, transform)
        self._position.vector = None
        self.create_jitted_functions()

    @staticmethod
    def get_model_rng(rng: Any) -> dict[str, Any]:
        """The keys that the model gets, at initialisation and in each step. Override for models that need others.

        Args:
            rng: The key to derive them from.
        """
        params_rng, dropout_rng = jax.random.split(rng)
        return {"params": params_rng, "dropout": dropout_rng}

    def run_model_init(self, exmp_input: Any, init_rng: Any) -> dict[str, Any]:
        """Make the model's variables.

        Args:
            exmp_input: An input to the model.
            init_rng: The key to derive the model's keys from.

        Returns:
            The collections by name, with the parameters under `params`.
        """
        return self._adapter.init(self.get_model_rng(init_rng), exmp_input)

    def _log_setup(self) -> None:
        if not self._logs_rows:
            return
        configs = {"trainer": self.trainer_config, "model": self.model_config, "optimizer": self.optimizer_config}
        for name, config in configs.items():
            try:
                self.logger.log_config({name: config})
            except ConfigError as error:  # say, a model config of a class that cannot be written
                LOGGER.warning(
                    "the %s config is not saved, so the run cannot be loaded from its folder: %s", name, error
                )
        devices = [str(device) for device in self.mesh.devices.flat]
        self.logger.log_environment(
            {"devices": devices, "backend": jax.default_backend(), "mesh": dict(self.mesh.shape)}
        )

    @property
    def _logs_rows(self) -> bool:
        """Whether anything becomes of a log row."""
        return self.trainer_config.logger is not None and bool(
            self.logger.log_path or self.logger.config.log_tools or self.logger.metric_postprocess_fn
        )

    # --- state --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> Any:
        """The training state. Donated to the next step: copy what has to outlive it."""
        if self._pruned_state is not None:
            return with_carry(self._pruned_state, self._position.carry)
        return view_carry(self._position.carry, self._apply_fn, self.tx)

    @state.setter
    def state(self, state: Any) -> None:
        self._position.carry = to_carry(state)
        self._position.step = int(state.step)
        self._pruned_state = None if isinstance(state, TrainState) else state

    @property
    def global_step(self) -> int:
        """Number of training steps done."""
        return self._position.step

    @global_step.setter
    def global_step(self, step: int) -> None:
        self._position.step = step

    @property
    def first_step(self) -> bool:
        """Whether no step was made yet since the trainer was built or restored."""
        return self._position.step == self._start_step

    def learning_rate(self, step: int | None = None) -> float:
        """The learning rate after a number of steps; the current one if left out."""
        return np.asarray(self._schedule(self.global_step if step is None else step)).item()

    def get_num_params(self) -> int:
        """The number of parameters in the model."""
        return summary.count_params(self._position.carry.params)

    def tabulate_params(self) -> str:
        """A table of the parameters: shape, dtype, sharding, weight decay, count."""
        return summary.tabulate_params(self._position.carry.params, self.optimizer_config)

    # --- steps --------------------------------------------------------------------------------------------------

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

    def create_training_step_function(self) -> TrainStep:
        """The function `train_step(state, batch, metrics) -> (state, metrics)`. Override for a step of your own."""
        modes = tuple(self.trainer_config.intermediates_log_modes) if self.trainer_config.log_intermediates else None
        return build_train_step(self.trainer_config, LossEvaluator(self.loss_function, self._bind, modes))

    def create_evaluation_step_function(self) -> EvalStep:
        """The function `eval_step(state, batch, metrics) -> metrics`. Override for a step of your own."""
        return build_eval_step(self.trainer_config, LossEvaluator(self.loss_function, self._bind))

    def _bind(self, mutable_variables: Any, rng: Any) -> Callable:
        return self._adapter.bind(mutable_variables, self.get_model_rng(rng))

    def create_jitted_functions(self) -> None:
        """Create the step functions; `train_step` and `eval_step` are jitted unless in debug mode."""
        config = self.trainer_config
        self._train_step, self._eval_step = self.create_training_step_function(), self.create_evaluation_step_function()
        self.train_step, self.eval_step = self._train_step, self._eval_step
        if not config.debug:
            self.train_step = jax.jit(self._train_step, donate_argnums=(0,) if config.donate_train_state else ())
            self.eval_step = jax.jit(self._eval_step)
        self._compiler = StepCompiler(
            self.mesh,
            self._carry_shardings,
            lambda carry: view_carry(carry, self._apply_fn, self.tx),
            donate=config.donate_train_state,
            debug=config.debug,
        )
        self._evaluator = Evaluator(
            self._compiler,
            self._placement,
            config.max_inflight_steps,
            None if config.debug else self._sentinel.watch,
        )
        self._train_call: Callable | None = None
        self._train_metric_shapes = self._eval_metric_shapes = None

    def init_train_metrics(self, batch: Any = None) -> Metrics:
        """Training metrics before any step. Their form is learned by tracing the step, so that it compiles only once.

        Args:
            batch: A batch from which shapes are inferred; the example batch if left out.
        """
        if self._train_metric_shapes is None or batch is not None:
            recorder = MetricRecorder(tuple(self.trainer_config.default_train_log_modes))
            self._train_metric_shapes = self._discover(self._train_step, batch, recorder)
        return Metrics(self._train_metric_shapes)

    def init_eval_metrics(self, batch: Any = None) -> Metrics:
        """Evaluation metrics before any batch; see `init_train_metrics`."""
        if self._eval_metric_shapes is None or batch is not None:
            recorder = MetricRecorder(("mean_nopostfix",), only_default=True)
            self._eval_metric_shapes = self._discover(self._eval_step, batch, recorder)
        return Metrics(self._eval_metric_shapes)

    def _discover(self, step: Callable, batch: Any, recorder: MetricRecorder) -> MetricLayout:
        batch = self.exmp_batch if batch is None else batch
        return self._compiler.discover_layout(step, self._position.carry, batch, recorder)
