"""The trainer: a facade over the engine, the progress of the training, its checkpoints and its run log."""

import contextlib
import dataclasses
import logging
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from trackside.callbacks import Callback, CallbackConfig, CallbackList, ModelCheckpoint, ProgressBarCallback
from trackside.callbacks.callback_list import bind_callbacks
from trackside.callbacks.trainer_view import Keep
from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.config import ConfigDict
from trackside.errors import CheckpointError, ConfigError
from trackside.findings import Finding
from trackside.logger import Logger, LoggerConfig
from trackside.logger.run_log import RunLog, opens_runs, without_opening_runs
from trackside.metrics import MetricLayout, Metrics, to_host_metrics
from trackside.processes import JAX_PROCESSES, Processes, whole
from trackside.profiling.ledger import CHECKPOINTING, VALIDATION, Ledger, LedgerTotals
from trackside.profiling.sentinel import RecompileSentinel
from trackside.run_layout import CHECKPOINTS_FOLDER
from trackside.text import count
from trackside.trainer import parameter_table, saved_training
from trackside.trainer.batch import DataloaderModule, slice_batch
from trackside.trainer.checkpoint_store import CheckpointStore
from trackside.trainer.checkpoints import NO_STEP, Checkpoints, find_checkpoints
from trackside.trainer.engine import Engine
from trackside.trainer.evaluation import Evaluator
from trackside.trainer.goal import Goal
from trackside.trainer.interrupts import StopRequest
from trackside.trainer.loaders import decode_position, describe_loader, loader_length, positions_of, restore_loaders
from trackside.trainer.logged_evaluation import Loaders, evaluate_and_log
from trackside.trainer.loop_plan import LoopPlan
from trackside.trainer.measurements import TrainMeasurements
from trackside.trainer.models import ModelConfig, adapter_for
from trackside.trainer.optimizer import OptimizerConfig
from trackside.trainer.overridable import Overridable, OwnHooks, unchanged
from trackside.trainer.progress_bar import is_shown, track
from trackside.trainer.run_configs import RunConfigs
from trackside.trainer.run_folder import choose_run_folder
from trackside.trainer.safetensors_file import export_params, import_params
from trackside.trainer.saved_training import MisfitError
from trackside.trainer.train_state import TrainState, to_carry, with_carry
from trackside.trainer.trainer_config import TrainerConfig
from trackside.trainer.training import Training

LOGGER = logging.getLogger(__name__)


class TrainerModule(Overridable):
    """Trains, evaluates and logs a model. Subclasses define `loss_function`.

    Args:
        trainer_config: How to train.
        model_config: Which model, on which mesh.
        optimizer_config: Which optimizer.
        batch: A batch from which shapes are inferred: arrays, or `jax.ShapeDtypeStruct` where the model's code has no
            `jax.debug` statements.
        mesh: A mesh to train on instead of the one that the model config describes.
    """

    clock: Clock = SYSTEM_CLOCK
    """Where the times of ledger, loop and logger come from."""
    processes: Processes = JAX_PROCESSES
    """The processes that train together."""

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
        self.model: Any = None
        self.status = ""
        self.ledger = Ledger(self.clock)
        """Where the time of the current or the last training went."""
        self.ledger_totals: LedgerTotals | None = None
        """Where the time of the last training went, once it is over."""
        self.findings: Sequence[Finding] = ()
        """What the measurements say is wrong with it, the most severe first."""
        self.loop_plan: LoopPlan | None = None
        """What the current or the last training was to do."""
        self.stop_request = StopRequest()
        """Ends the current training when it is asked."""
        self.checkpoint_callback: ModelCheckpoint | None = None
        """Who keeps the checkpoints of the current or the last training."""
        self._pruned_state: Any = None
        self._evaluation_params: Callable[[Any], Any] | None = None
        self.init_logger(self.trainer_config.logger)
        self.run_configs = RunConfigs(self.trainer_config, self.model_config, self.optimizer_config)
        try:
            self._build(mesh)
        except BaseException:
            self.logger.finalize("error")
            raise

    def _build(self, mesh: Mesh | None) -> None:
        """Build everything that stands before the first step."""
        config = self.trainer_config
        self.sentinel = RecompileSentinel(self.run_log, config.max_recompiles, config.on_too_many_recompiles)
        self.checkpoints = Checkpoints(self.run_log, self.ledger, self.processes)
        self.init_mesh(self.model_config, mesh)
        self.build_model(self.model_config)
        self.adapter = adapter_for(self.model, self.model_config)
        self.init_optimizer(self.optimizer_config)
        self.init_model(self.batch_to_input(self.exmp_batch))
        self.create_jitted_functions()
        self.init_callbacks(config.callbacks)
        if self.logs_rows:
            self.run_configs.log_to(self.logger)
            devices = [str(device) for device in self.mesh.devices.flat]
            self.logger.log_environment(
                {"devices": devices, "backend": jax.default_backend(), "mesh": dict(self.mesh.shape)}
            )

    # --- set-up -------------------------------------------------------------------------------------------------------

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
        self._folder_of_config = wanted
        if wanted is not None and "{time}" not in str(wanted) and self.logger.log_path != wanted:
            LOGGER.info("%s holds a run already; this one goes to %s", wanted, self.logger.log_path)

    @property
    def run_log(self) -> RunLog:
        """The rows of the run, for those who write rows of other kinds than metrics."""
        return self.logger.run_log

    def init_callbacks(self, callback_configs: Iterable[CallbackConfig | Callback]) -> None:
        """Build the callbacks of the trainer config."""
        self.callbacks = CallbackList(bind_callbacks(callback_configs, self, self.dataset), self.ledger)

    def create_jitted_functions(self) -> None:
        """Create the step functions; `train_step` and `eval_step` are jitted unless in debug mode."""
        config = self.trainer_config
        self.engine = engine = Engine(
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
        self.evaluator = Evaluator(engine, config.max_inflight_steps, watch)
        self.measurements = TrainMeasurements(engine, self.progress, self.logger)
        """What is known of the steps, in addition to their metrics."""
        self._train_metric_shapes: MetricLayout | None = None
        self._eval_metric_shapes: MetricLayout | None = None

    def extend_optimizer(
        self,
        transform: optax.GradientTransformation,
        evaluation_params: Callable[[Any], Any] | None = None,
    ) -> None:
        """Let another transformation follow the optimizer, such as one that keeps an average of the parameters.

        The step is compiled again. To be called before training, or between two trainings.

        Args:
            transform: The transformation.
            evaluation_params: From a state, the parameters that evaluation shall use instead of its own.
        """
        extended = self.engine.with_optimizer_extended(transform, self.progress.carry)
        self.tx, self.progress.carry, self.carry_shardings = extended
        self._evaluation_params = evaluation_params or self._evaluation_params
        peak = self.measurements.calibrated_peak
        self.create_jitted_functions()
        self.measurements.calibrated_peak = peak

    def init_train_metrics(self, batch: Any = None) -> Metrics:
        """Training metrics before any step. Their form is learned by tracing the step, so that it compiles only once.

        Args:
            batch: A batch from which shapes are inferred; the example batch if left out.
        """
        if self._train_metric_shapes is None or batch is not None:
            batch = self.exmp_batch if batch is None else batch
            self._train_metric_shapes = self.engine.train_layout(self.progress.carry, batch)
        return Metrics(self._train_metric_shapes)

    def init_eval_metrics(self, batch: Any = None) -> Metrics:
        """Evaluation metrics before any batch; see `init_train_metrics`."""
        if self._eval_metric_shapes is None or batch is not None:
            batch = self.exmp_batch if batch is None else batch
            self._eval_metric_shapes = self.engine.eval_layout(self.progress.carry, batch)
        return Metrics(self._eval_metric_shapes)

    @property
    def logs_rows(self) -> bool:
        """Whether anything becomes of a log row."""
        return self.trainer_config.logger is not None and bool(
            self.logger.log_path or self.logger.config.log_tools or self.logger.metric_postprocess_fn
        )

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> Any:
        """The training state. Donated to the next step: copy what has to outlive it."""
        if self._pruned_state is not None:
            return with_carry(self._pruned_state, self.progress.carry)
        return self.engine.view(self.progress.carry)

    @state.setter
    def state(self, state: Any) -> None:
        self.progress.carry = to_carry(state)
        self.progress.cursor.step = int(state.step)
        self._pruned_state = None if isinstance(state, TrainState) else state

    @property
    def global_step(self) -> int:
        """Number of training steps done."""
        return self.progress.cursor.step

    @global_step.setter
    def global_step(self, step: int) -> None:
        self.progress.cursor.step = step

    @property
    def epoch(self) -> int:
        """The current epoch, from 1; 0 before the first."""
        return self.progress.cursor.epoch

    @property
    def first_step(self) -> bool:
        """Whether no step was made yet since the trainer was built or restored."""
        return self.global_step == self.progress.start_step

    def learning_rate(self, step: int | None = None) -> float:
        """The learning rate after a number of steps; the current one if left out."""
        return np.asarray(self.schedule(self.global_step if step is None else step)).item()

    def get_num_params(self) -> int:
        """The number of parameters in the model."""
        return parameter_table.count_params(self.progress.carry.params)

    def tabulate_params(self) -> str:
        """A table of the parameters: shape, dtype, sharding, weight decay, count."""
        return parameter_table.tabulate_params(self.progress.carry.params, self.optimizer_config)

    def calibrate_peak(self) -> None:
        """Measure what a device can do, unless it is known. The ledger uses it if that is before the first step."""
        self.measurements.calibrate_peak()

    # --- training -----------------------------------------------------------------------------------------------------

    def set_dataset(self, dataset: DataloaderModule) -> None:
        """Set the loaders of the trainer and of its callbacks."""
        self.dataset = dataset
        for callback in self.callbacks:
            callback.set_dataset(dataset)

    def train_model(
        self,
        train_loader: Iterable,
        val_loader: Loaders | None = None,
        test_loader: Loaders | None = None,
        num_epochs: int | None = None,
        num_train_steps: int | None = None,
        steps_per_epoch: int | None = None,
    ) -> dict[str, dict[str, float]]:
        """Train until the given number of epochs or steps, counted from step 0, is reached.

        Epoch and step indices start at 1.

        Args:
            train_loader: Batches to train on: any iterable.
            val_loader: Batches to validate on; of a dict of loaders, each is evaluated and its key prefixed to the
                metrics (`DATAKEY_METRICKEY`); None for no validation.
            test_loader: Batches on which the model is tested at the end, the best one where a callback keeps it; a dict
                likewise.
            num_epochs: Number of epochs. Either this or `num_train_steps`.
            num_train_steps: Number of steps.
            steps_per_epoch: Steps per epoch, where that is not one pass over the loader.

        Returns:
            `train` and `val` metrics of the best model, those of each validation as `val_epoch_<n>` and
            `val_step_<n>`, and those of the test.
        """
        goal = Goal.of(num_epochs, num_train_steps, steps_per_epoch, loader_length(train_loader))
        self.checkpoint_callback = next((one for one in self.callbacks if isinstance(one, ModelCheckpoint)), None)
        return Training(self, goal, train_loader, val_loader, test_loader).run()

    def fit(
        self,
        train_loader: Iterable | None = None,
        val_loader: Loaders | None = None,
        test_loader: Loaders | None = None,
        *,
        num_epochs: int | None = None,
        num_train_steps: int | None = None,
        steps_per_epoch: int | None = None,
        callbacks: Iterable[Callback | CallbackConfig] | None = None,
    ) -> dict[str, dict[str, float]]:
        """Train with more callbacks than those of the config; one epoch unless told otherwise.

        Args:
            train_loader: Batches to train on; those set by `set_dataset` if left out.
            val_loader: Batches to validate on; likewise.
            test_loader: Batches to test on; likewise.
            num_epochs: As in `train_model`.
            num_train_steps: As in `train_model`.
            steps_per_epoch: As in `train_model`.
            callbacks: A list or `CallbackList` of callbacks or configs of them, called after those of the config.

        Returns:
            As `train_model`.
        """
        dataset = self.dataset or DataloaderModule()
        train_loader = dataset.train_dataloader if train_loader is None else train_loader
        if train_loader is None:
            raise ConfigError("train_loader: there is none; pass one, or set the loaders with set_dataset before")
        if num_epochs is None and num_train_steps is None:
            num_epochs = 1
        before = self.callbacks
        self.callbacks = CallbackList([*before, *bind_callbacks(callbacks, self, self.dataset)], self.ledger)
        try:
            return self.train_model(
                train_loader,
                dataset.val_dataloader if val_loader is None else val_loader,
                dataset.test_dataloader if test_loader is None else test_loader,
                num_epochs,
                num_train_steps,
                steps_per_epoch,
            )
        finally:
            self.callbacks = before

    def request_stop(self, reason: str) -> None:
        """End the training after the current step, as one that is done.

        Args:
            reason: Why, for the log.
        """
        LOGGER.info("training stops: %s", reason)
        self.run_log.write("stop", reason=reason, step=self.global_step)
        self.stop_request.ask("success")

    @property
    def validates(self) -> bool:
        """Whether the current or the last training validates at all."""
        return self.loop_plan is not None and self.loop_plan.validates

    def validates_epoch(self, epoch_idx: int) -> bool:
        """Whether a validation follows the given epoch."""
        return self.loop_plan is not None and self.loop_plan.validates_epoch(epoch_idx)

    def log_training_info(
        self,
        num_epochs: int | None,
        num_train_steps: int | None,
        steps_per_epoch: int | None,
        train_loader: Iterable,
        val_loader: Loaders | None,
        test_loader: Loaders | None,
    ) -> None:
        """Log what is about to be trained: length, loaders, parameters, devices."""
        length = count(num_epochs, "epoch") if num_epochs is not None else count(num_train_steps or 0, "step")
        per_epoch = f" of {count(steps_per_epoch, 'step')}" if num_epochs is not None and steps_per_epoch else ""
        LOGGER.info("Training for %s%s, from step %d.", length, per_epoch, self.global_step)
        for name, loader in (("train", train_loader), ("val", val_loader), ("test", test_loader)):
            LOGGER.info("%s data: %s", name, describe_loader(loader))
        LOGGER.info("%s parameters, mesh %s", f"{self.get_num_params():,}", dict(self.mesh.shape))

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def test_eval_function(self, val_loader: Loaders) -> dict[str, float] | None:
        """Run the evaluation step on one batch, so that its errors show before training and not after an epoch.

        Loaders that can be read only once are left alone; the example batch serves instead.

        Args:
            val_loader: The validation loader.

        Returns:
            The metrics that a validation will have, with the values of that batch; None if no batch was read.
        """
        loaders = val_loader if isinstance(val_loader, dict) else {"": val_loader}
        loader = next(iter(loaders.values()))
        layout = self.init_eval_metrics().layout
        iterator = iter(loader)
        if iterator is loader:
            return None
        with self.ledger.spend(VALIDATION):
            first = next(iterator, None)
            batches = [] if first is None else [first]
            metrics = self.evaluator.evaluate(self.progress.carry, batches, layout, name="val_loader")
            values = to_host_metrics(metrics)
            named = {f"{key}_{name}" if key else name: value for key in loaders for name, value in values.items()}
            return self.logger.preview_metrics(named, "val")

    def _eval_model_in_train_loop(self, val_loader: Any, epoch_idx: int) -> dict[str, float]:
        """Validate during training, with the hooks around it."""
        step, hooks = self.global_step, CallbackList([OwnHooks(self), *self.callbacks], self.ledger)
        hooks.call("on_validation_epoch_start", epoch_idx, step)
        return self._evaluate(
            val_loader,
            "val",
            epoch_idx,
            lambda metrics: hooks.call("on_validation_epoch_end", metrics, epoch_idx, step),
        )

    def test_model(self, test_loader: Loaders, apply_callbacks: bool = False, epoch_idx: int = 0) -> dict[str, float]:
        """Test the model.

        Args:
            test_loader: The batches, or a dict of loaders whose keys are prefixed to the metrics.
            apply_callbacks: Whether the callbacks hear of it.
            epoch_idx: The epoch index for callbacks and log.

        Returns:
            The metrics.
        """
        hooks = CallbackList([OwnHooks(self), *(self.callbacks if apply_callbacks else ())], self.ledger)
        hooks.call("on_test_epoch_start", epoch_idx)
        return self._evaluate(
            test_loader, "test", epoch_idx, lambda metrics: hooks.call("on_test_epoch_end", metrics, epoch_idx)
        )

    def eval_model(self, data_loader: Loaders, mode: str, epoch_idx: int) -> dict[str, float]:
        """Evaluate on a data set and log the metrics.

        Args:
            data_loader: The batches, or a dict of loaders whose keys are prefixed to the metrics.
            mode: What to log them under, commonly `val` or `test`.
            epoch_idx: The epoch index for the log.

        Returns:
            The metrics, averaged over the data points.
        """
        return self._evaluate(data_loader, mode, epoch_idx, lambda metrics: None)

    def _evaluate(self, loaders: Loaders, mode: str, epoch_idx: int, on_end: Callable) -> dict[str, float]:
        was_open, step = self.logger.is_open, self.global_step
        metrics = evaluate_and_log(
            loaders, mode, epoch_idx, step, self._run_model_eval, on_end, self.logger, self.ledger
        )
        if not was_open:  # after a training: the run is over again
            self.logger.finalize(self.status)
        return metrics

    def _run_model_eval(self, data_loader: Iterable, mode: str = "", epoch_idx: int = -1) -> Metrics:
        """Evaluate on one data set, without logging.

        Args:
            data_loader: The batches.
            mode: What the progress bar shows.
            epoch_idx: What the progress bar shows next to it.

        Returns:
            The metrics, on the device.
        """
        desc = f"{mode} {epoch_idx}" if epoch_idx >= 0 else mode

        def tracked(batches: Iterable) -> Iterable:
            return self.tracker(batches, desc=desc, total=loader_length(data_loader), leave=False, delay=1.0)

        carry, layout = self.engine.to_evaluate(self.progress.carry), self.init_eval_metrics().layout
        return self.evaluator.evaluate(carry, data_loader, layout, tracked, f"{mode}_loader" if mode else "data_loader")

    def predict(self, data_loader: Iterable) -> Any:
        """The model's outputs for every example of a loader, as numpy arrays in the loader's order.

        With several processes, each has those for the examples of its own loader.
        """
        carry = self.engine.to_evaluate(self.progress.carry)
        return self.evaluator.predict(carry, data_loader, self._predict_step)

    def _predict_step(self, state: TrainState, batch: Any) -> Any:
        apply_fn = self._bind(state.mutable_variables, jax.random.key(self.trainer_config.seed_eval))
        return self.adapter.predict(apply_fn, state.params, self.batch_to_input(batch))

    @property
    def shows_bar(self) -> bool:
        """Whether this process draws progress bars."""
        is_asked_for = any(isinstance(one, ProgressBarCallback) for one in self.callbacks)
        return is_shown(self.trainer_config.enable_progress_bar or is_asked_for, self.processes.is_main)

    def tracker(self, iterator: Iterable, **kwargs: Any) -> Iterable:
        """The iterator in a progress bar, if bars are enabled, else as it is.

        Args:
            iterator: What to go through.
            kwargs: Arguments to tqdm.
        """
        return track(iterator, self.shows_bar, **kwargs)

    # --- saving -------------------------------------------------------------------------------------------------------

    def save_checkpoint(
        self,
        directory: str | pathlib.Path | None = None,
        metrics: Mapping[str, float] | None = None,
        keep: Keep | None = None,
    ) -> None:
        """Save the training at its current step. Returns as soon as training may continue.

        A state that holds anything that is not finite is not saved; the log says so. If the last save to this folder
        has failed, that is raised.

        Args:
            directory: The folder of the checkpoints; `checkpoints` in the run's folder if left out.
            metrics: Metrics of a validation that go with the checkpoint; those of the current step if left out.
            keep: Chooses the steps to keep from the metrics of all; if left out, all are kept.
        """
        with self.ledger.spend(CHECKPOINTING):
            self.checkpoints.save(self.checkpoints.store(directory), self.progress, self._record(metrics), keep)

    def _record(self, metrics: Mapping[str, float] | None) -> dict[str, Any]:
        """What is saved in addition to the state. Nothing in it changes afterwards."""
        progress, dataset = self.progress, self.dataset or DataloaderModule()
        stages = progress.metrics.at(self.global_step)
        if metrics is not None:
            stages = {"train": dict(metrics), "val": dict(metrics)}  # of whichever stage is asked for
        progress.time.in_steps_s = self.ledger.totals().in_steps_s
        record = {
            **progress.to_record(self.clock.now()),
            **saved_training.metrics_to_record(stages, self.checkpoint_callback),
            "configs": self.run_configs.to_plain(),
            "callbacks": self.callbacks.state_dict(),
        }
        record["loaders"].update(positions_of({"val": dataset.val_dataloader, "test": dataset.test_dataloader}))
        return record

    def finish_saving(self) -> None:
        """Wait for checkpoints that are being written. One that failed is reported; the earlier ones are intact."""
        self.checkpoints.finish()

    def resume(self) -> bool:
        """Continue from the newest good checkpoint of the callbacks' folder, as `TrainerConfig.resume` says.

        A folder that this trainer has not written to and must not continue from is refused, so that no run is mixed
        with another.

        Returns:
            Whether a checkpoint was loaded.
        """
        step, mode = NO_STEP, self.trainer_config.resume
        if self.checkpoint_callback is not None:
            step = self.checkpoints.step_to_resume(self.checkpoint_callback.directory, mode)
        elif mode == "must":
            raise CheckpointError("resume='must': no callback keeps checkpoints; add a CheckpointConfig")
        elif mode == "auto":
            LOGGER.warning("resume='auto': no callback keeps checkpoints to resume from; add a CheckpointConfig")
        if step == NO_STEP:
            self._continue_without_checkpoint()
            return False
        assert self.checkpoint_callback is not None
        store = self.checkpoints.store(self.checkpoint_callback.directory)
        try:
            record = self.checkpoints.load(store, step, self.engine, self.progress, with_optimizer=True)
        except MisfitError as error:
            why = self.run_configs.explain_misfit(store.record(step), self.callbacks.state_dict())
            raise MisfitError(f"step {step} of {store.root} cannot be resumed; {why}\n{error}") from None
        self.run_configs.log_changes_since(record["configs"])
        if self.logs_rows:
            self.logger.rewind(step)
        self.callbacks.load_state_dict(record["callbacks"])
        return True

    def _continue_without_checkpoint(self) -> None:
        """See whether a run that others have trained may continue from the state that this trainer has."""
        log, step = self.run_log, self.global_step
        if log.has_trained or not log.num_earlier_legs:
            return
        is_finished = self.processes.main_decides(lambda: int(log.earlier_status == "success"), "resume")
        if step == 0 and is_finished:
            raise CheckpointError(
                f"resume={self.trainer_config.resume!r}: {log.path} holds a finished run and no checkpoint to continue "
                "from; choose another log_path, or set resume='never', which starts in a folder of its own"
            )
        LOGGER.info("the run in %s continues from step %d%s", log.path, step, "" if step else ": it has no checkpoint")
        self.logger.rewind(step or -1)  # of a training that begins again, rows before its first step go as well

    @contextlib.contextmanager
    def best_model(self) -> Iterator[None]:
        """For as long as it is open, the trainer holds the best model that its callbacks have saved."""
        self.finish_saving()
        progress, before = self.progress, self.progress.carry
        best = None
        if self.checkpoint_callback is not None:
            best = self.checkpoints.best_carry(self.checkpoint_callback, self.engine, progress)
        progress.carry = before if best is None else best
        try:
            yield
        finally:
            progress.carry = before

    def evaluation_params(self) -> Any:
        """The parameters that evaluation uses, such as the average that `EMA` keeps; else those that are trained."""
        return self.engine.to_evaluate(self.progress.carry).params

    def export_params(self, path: str | pathlib.Path) -> None:
        """Write the parameters to a safetensors file, those that evaluation uses.

        With several processes all have to call this, and the first one writes.
        """
        params = whole(self.evaluation_params())
        if self.processes.is_main:
            export_params(params, path)

    def import_params(self, path: str | pathlib.Path) -> None:
        """Take over parameters from a safetensors file; the optimizer stays as it is."""
        carry = self.progress.carry
        params = jax.device_put(import_params(carry.params, path), self.carry_shardings.params)
        self.progress.carry = carry._replace(params=params)

    # --- loading ------------------------------------------------------------------------------------------------------

    def load_model(self, step_idx: int = -1, raise_if_not_found: bool = True) -> None:
        """Load the training from the run's folder: parameters, optimizer, batch statistics, position.

        Args:
            step_idx: The step; -1 for the latest that is not damaged.
            raise_if_not_found: Whether it is an error if there is none; otherwise a warning.
        """
        self.finish_saving()
        try:
            store = self._store_to_load()
            step = self.checkpoints.choose(store, step_idx)
            self.checkpoints.load(store, step, self.engine, self.progress, self._has_optimizer)
        except CheckpointError as error:
            if raise_if_not_found:
                raise
            LOGGER.warning("no model was loaded: %s", error)

    def _store_to_load(self) -> CheckpointStore:
        """The run's checkpoints; before it has any, those of the folder that the config names, if that was taken."""
        own, named = self.checkpoints.store(None), self._folder_of_config
        if named is None or named == self.logger.log_path or own.steps():
            return own
        return self.checkpoints.store(named / CHECKPOINTS_FOLDER)

    def load_data_loaders(
        self, step_idx: int = -1, train_loader: Any = None, val_loader: Any = None, test_loader: Any = None
    ) -> None:
        """Put the positions of loaders back that were saved in the run's folder.

        Args:
            step_idx: The step; -1 for the trainer's current one.
            train_loader: Set to its saved position, if given.
            val_loader: Set to its saved position, if given and it has one.
            test_loader: Set to its saved position, if given and it has one.
        """
        record = self._store_to_load().record(self.global_step if step_idx < 0 else step_idx)
        saved = decode_position(saved_training.own_loaders(record, self.processes))
        self.restore_data_loaders(saved, train_loader, val_loader, test_loader)

    def load_pretrained_model(
        self,
        checkpoint_path: str | pathlib.Path,
        step_idx: int = -1,
        load_best: bool = False,
        load_optimizer: bool = True,
        train_loader: Any = None,
        val_loader: Any = None,
        test_loader: Any = None,
        delete_params_before_loading: bool = True,
    ) -> int:
        """Load a model from a folder of checkpoints.

        Args:
            checkpoint_path: The folder, that of a run, or that of one step.
            step_idx: The step; -1 for the latest that is not damaged, or the one that the path names.
            load_best: Whether to load the best step instead, by the metric that was monitored when it was saved, else
                by its validation loss.
            load_optimizer: Whether to load the optimizer's state too.
            train_loader: Set to its saved position, if given.
            val_loader: Set to its saved position, if given.
            test_loader: Set to its saved position, if given.
            delete_params_before_loading: Whether to free the current parameters first. Saves memory on the device.
                What does not fit is found before; should reading itself fail, they are gone.

        Returns:
            The step that was loaded.
        """
        self.finish_saving()
        root, named_step = find_checkpoints(pathlib.Path(checkpoint_path))
        store = self.checkpoints.store(root)
        step = self.checkpoints.choose(store, named_step if step_idx < 0 else step_idx, load_best)
        with_optimizer = load_optimizer and self._has_optimizer
        record = self.checkpoints.load(
            store, step, self.engine, self.progress, with_optimizer, delete_params_before_loading
        )
        if any(loader is not None for loader in (train_loader, val_loader, test_loader)):
            saved = decode_position(saved_training.own_loaders(record, self.processes))
            self.restore_data_loaders(saved, train_loader, val_loader, test_loader)
        return step

    @property
    def _has_optimizer(self) -> bool:
        return self.progress.carry.opt_state is not None

    @classmethod
    def load_from_checkpoint(cls, checkpoint: str | pathlib.Path, exmp_input: Any = None, batch_size: int = -1) -> Self:
        """Build a trainer with the configs and the latest state of a run.

        Nothing is written to the run's folder until the trainer trains: evaluating the model leaves no trace there.
        When it trains, its rows go there, also if the folder was moved.

        Args:
            checkpoint: The run's folder, its folder of checkpoints, or that of one step.
            exmp_input: An example batch, from which shapes are inferred.
            batch_size: How many examples of it to use; -1 for all.
        """
        if exmp_input is None:
            raise CheckpointError("exmp_input: an example batch is needed to build the model; arrays or their shapes")
        configs, store, step = RunConfigs.of_checkpoint(pathlib.Path(checkpoint))
        batch = exmp_input if batch_size < 0 else slice_batch(exmp_input, slice(0, batch_size))
        with without_opening_runs():
            trainer = cls(configs.trainer, configs.model, configs.optimizer, batch)
        trainer.load_pretrained_model(store.root, step)
        return trainer

    def restore_model(self, state_dict: dict[str, Any]) -> None:
        """Put a saved state in place of the current one, whose class is kept.

        Args:
            state_dict: The saved `params`, and optionally `step`, `opt_state`, `mutable_variables` and `rng`. The
                optimizer's state is taken over only if the current state has one.
        """
        carry = self.progress.carry
        is_pruned = carry.opt_state is None
        carry = saved_training.restore_carry(carry, self.carry_shardings, state_dict, is_pruned)
        self.progress.begin_at(carry, int(carry.step))

    @staticmethod
    def restore_data_loaders(
        state_dict: dict[str, Any], train_loader: Any = None, val_loader: Any = None, test_loader: Any = None
    ) -> None:
        """Put saved positions back into loaders.

        Args:
            state_dict: Positions under `train`, `val` and `test`.
            train_loader: Set to the position under `train`, if given.
            val_loader: Set to the position under `val`, if given.
            test_loader: Set to the position under `test`, if given.
        """
        restore_loaders(state_dict, {"train": train_loader, "val": val_loader, "test": test_loader})
