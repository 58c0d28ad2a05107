"""The trainer: a facade over the engine, the progress of the training, its checkpoints and its run log."""

import contextlib
import logging
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import optax
from jax.sharding import Mesh

from trackside.callbacks import Callback, CallbackConfig, CallbackList, ModelCheckpoint, ProgressBarCallback
from trackside.callbacks.callback_list import CallbackArgument, bind_callbacks
from trackside.callbacks.trainer_view import Keep
from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.config.parse import STRICT, parse
from trackside.errors import ConfigError
from trackside.findings import Finding
from trackside.logger.run_log import RunLog
from trackside.measured_run.batch_size import loader_length
from trackside.measured_run.in_ledger import accounting, in_ledger
from trackside.measured_run.interrupts import StopRequest
from trackside.measured_run.progress_bar import is_shown, track
from trackside.measured_run.step_meter import StepMeter
from trackside.processes import JAX_PROCESSES, Processes
from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import CHECKPOINTING, RESTORING, SETUP, VALIDATION, LedgerTotals
from trackside.trainer import parameter_table
from trackside.trainer.announcement import announce
from trackside.trainer.batch import DataloaderModule, check_dataset
from trackside.trainer.batch_limit import BatchLimit, find_largest_batch, num_batches_held
from trackside.trainer.checkpoints import Checkpoints
from trackside.trainer.compile_cache import CompileCache
from trackside.trainer.first_look import FirstLook
from trackside.trainer.fitting import fit
from trackside.trainer.goal import Goal
from trackside.trainer.learning_rate_curve import LearningRateTest
from trackside.trainer.learning_rate_test import MakeOptimizer, find_learning_rate
from trackside.trainer.loaders import restore_loaders
from trackside.trainer.loading import build_from_checkpoint, load_own, load_positions, load_pretrained, store_to_load
from trackside.trainer.logged_evaluation import Loaders, check_not_empty, evaluate_and_log, run_test, try_one_batch
from trackside.trainer.loop_plan import LoopPlan
from trackside.trainer.model_summary import ModelSummary, summarise_model
from trackside.trainer.models import ModelConfig
from trackside.trainer.optimizer import OptimizerConfig
from trackside.trainer.overridable import Overridable
from trackside.trainer.resuming import resume_training
from trackside.trainer.run_configs import RunConfigs
from trackside.trainer.safetensors_file import ImportReport, export_weights, import_weights
from trackside.trainer.saved_training import build_record, restore_carry
from trackside.trainer.set_up import set_up
from trackside.trainer.torch_batches import with_arrays
from trackside.trainer.train_state import TrainState, to_carry, with_carry
from trackside.trainer.trainer_config import TrainerConfig
from trackside.trainer.training import Training
from trackside.trainer.training_ledger import begin_ledger, write_ledger_if_closed

LOGGER = logging.getLogger(__name__)
"""Python's logger for messages about a training."""


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
    run_configs: RunConfigs
    """What is written of the configs."""
    checkpoints: Checkpoints
    """Saves the training, and puts saved ones back."""

    def __init__(
        self,
        trainer_config: TrainerConfig,
        model_config: ModelConfig,
        optimizer_config: OptimizerConfig,
        batch: Any,
        mesh: Mesh | None = None,
    ):
        self.ledger = Ledger(self.clock)
        """Where the time of the current or the last training went, from when the trainer was built or it began."""
        self.exmp_batch = with_arrays(batch)
        self.dataset: DataloaderModule | None = None
        self.model: Any = None
        self.status = ""
        self.first_look = FirstLook()
        """Loaders of which a first batch was looked at, and that are not open yet."""
        self.resumes_by_itself = False
        """Whether the same command resumes this run whatever `resume` says, as that of the short trainer does."""
        self.ledger_totals: LedgerTotals | None = None
        """Where the time of the last call of `train_model` went, and of what was called since; None before its end."""
        self.meter: StepMeter | None = None
        """Keeps account of the steps of the current or the last training."""
        self.findings: Sequence[Finding] = ()
        """What the measurements say is wrong with it, the most severe first."""
        self.loop_plan: LoopPlan | None = None
        """What the current or the last training was to do."""
        self.stop_request = StopRequest()
        """Ends the current training when it is asked."""
        self.checkpoint_callback: ModelCheckpoint | None = None
        """Who keeps the checkpoints of the current or the last training."""
        self.compile_cache: CompileCache | None = None
        """Where compiled programs are kept."""
        self._pruned_state: Any = None
        self._evaluation_params: Callable[[Any], Any] | None = None
        with accounting(self.ledger), self.ledger.spend(SETUP):
            self.trainer_config = parse(TrainerConfig, trainer_config, STRICT, "trainer_config")
            self.model_config = parse(ModelConfig, model_config, STRICT, "model_config")
            _refuse_optax(optimizer_config)
            self.optimizer_config = parse(OptimizerConfig, optimizer_config, STRICT, "optimizer_config")
            set_up(self, mesh)

    # --- set-up -------------------------------------------------------------------------------------------------------

    @property
    def run_log(self) -> RunLog:
        """The rows of the run, for those who write rows of other kinds than metrics."""
        return self.logger.run_log

    def init_callbacks(self, callback_configs: Iterable[CallbackConfig | Callback]) -> None:
        """Build the callbacks of the trainer config."""
        self.callbacks = CallbackList(bind_callbacks(callback_configs, self, self.dataset), self.ledger)

    @in_ledger
    def extend_optimizer(
        self, transform: optax.GradientTransformation, evaluation_params: Callable[[Any], Any] | None = None
    ) -> None:
        """Let another transformation follow the optimizer, such as one that keeps an average of the parameters.

        The step is compiled again. To be called before training, or between two trainings.

        Args:
            transform: The transformation.
            evaluation_params: From a state, the parameters that evaluation shall use instead of its own.
        """
        extended = self.engine.with_optimizer_extended(transform, self.progress.carry, self.sentinel.named)
        self.tx, self.progress.carry, self.carry_shardings = extended
        self._evaluation_params = evaluation_params or self._evaluation_params
        peak = self.measurements.calibrated_peak
        self.create_jitted_functions()
        self.measurements.calibrated_peak = peak

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
        self.progress.data.note_look()
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
        return parameter_table.count_params(self.progress.form.params)

    def tabulate_params(self) -> str:
        """A table of the parameters: shape, dtype, sharding, weight decay, count."""
        return parameter_table.tabulate_params(self.progress.form.params, self.optimizer_config)

    @in_ledger
    def calibrate_peak(self) -> None:
        """Measure what a device can do, unless it is known. The ledger uses it if that is before the first step."""
        with self.ledger.spend(SETUP):
            self.measurements.calibrate_peak()

    # --- before training ----------------------------------------------------------------------------------------------

    def summary(self, depth: int | None = None) -> ModelSummary:
        """Parameters, operations of a training step and bytes by module. Nothing is compiled or run.

        Args:
            depth: How deep modules are shown; None for all.
        """
        config = self.trainer_config
        num_unrolled = 1 if config.gradient_accumulate_scan else config.gradient_accumulate_steps
        return summarise_model(self.engine, self.progress.carry, self.exmp_batch, num_unrolled, depth)

    def find_learning_rate(
        self,
        loader: Iterable | None = None,
        *,
        lowest: float | None = None,
        highest: float | None = None,
        num_steps: int = 100,
        optimizer: MakeOptimizer | None = None,
    ) -> LearningRateTest:
        """Train a copy of the model with a growing learning rate, and suggest one. The training is left as it is.

        Args:
            loader: The batches, repeated if they are too few; those to train on, set by `set_dataset`, if left out.
            lowest: The first learning rate; 1e-7 by default.
            highest: The last learning rate, unless the loss explodes before; 10 by default.
            num_steps: How many steps there are from the first to the last.
            optimizer: For an optimizer that does not come from an `OptimizerConfig`: makes it with the schedule that it
                is given, as in `lambda schedule: optax.adamw(schedule)`. Without it, rates are multiples of its own,
                by default from 1e-4 to 1e4 times.
        """
        return find_learning_rate(self, loader, lowest, highest, num_steps, optimizer)

    def largest_batch(
        self, limit_bytes: int | None = None, *, max_size: int | None = None, max_compiles: int = 10
    ) -> BatchLimit:
        """The largest batch that fits into memory, found by compiling the training step, which is never run.

        Args:
            limit_bytes: What each device has for the training; by default what is free on it, and what the training's
                state takes.
            max_size: The largest size to try; None for no bound.
            max_compiles: How often to compile at most.
        """
        num_held = num_batches_held(self.engine, self.trainer_config)
        return find_largest_batch(
            self.engine, self.progress.carry, self.exmp_batch, num_held, limit_bytes, max_size, max_compiles
        )

    # --- training -----------------------------------------------------------------------------------------------------

    def set_dataset(self, dataset: DataloaderModule) -> None:
        """Set the loaders of the trainer and of its callbacks."""
        check_dataset(dataset)
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
        begin_ledger(self)
        goal = Goal.of(num_epochs, num_train_steps, steps_per_epoch, loader_length(train_loader))
        for argument, loaders in (("val_loader", val_loader), ("test_loader", test_loader)):
            check_not_empty(loaders, argument)
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
        callbacks: CallbackArgument = None,
    ) -> dict[str, dict[str, float]]:
        """Train as `train_model`, with more callbacks than those of the config; one epoch unless told otherwise.

        Args:
            train_loader: Batches to train on; those set by `set_dataset` if left out.
            val_loader: Batches to validate on; likewise.
            test_loader: Batches to test on; likewise.
            num_epochs: As in `train_model`.
            num_train_steps: As in `train_model`.
            steps_per_epoch: As in `train_model`.
            callbacks: Callbacks or configs of them, called after those of the config: one, a list or a `CallbackList`.
        """
        given = DataloaderModule(train_loader, val_loader, test_loader)
        return fit(self, given, num_epochs, num_train_steps, steps_per_epoch, callbacks)

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
        dataset = DataloaderModule(train_loader, val_loader, test_loader)
        announce(self, num_epochs, num_train_steps, steps_per_epoch, dataset)

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def test_eval_function(self, val_loader: Loaders) -> dict[str, float] | None:
        """Run the evaluation step on one batch, so that its errors show before training and not after an epoch.

        Loaders that can be read only once are left alone.

        Args:
            val_loader: The validation loader.

        Returns:
            The metrics that a validation will have, with the values of that batch; None if no batch was read.
        """
        return try_one_batch(self, val_loader)

    @in_ledger
    def test_model(self, test_loader: Loaders, apply_callbacks: bool = False, epoch_idx: int = 0) -> dict[str, float]:
        """Test the model, and give its metrics.

        Args:
            test_loader: The batches, or a dict of loaders whose keys are prefixed to the metrics.
            apply_callbacks: Whether the callbacks hear of it.
            epoch_idx: The epoch index for callbacks and log.
        """
        return run_test(self, test_loader, apply_callbacks, epoch_idx)

    @in_ledger
    def eval_model(self, data_loader: Loaders, mode: str, epoch_idx: int) -> dict[str, float]:
        """Evaluate on a data set, log the metrics, averaged over the data points, and give them.

        Args:
            data_loader: The batches, or a dict of loaders whose keys are prefixed to the metrics.
            mode: What to log them under, commonly `val` or `test`.
            epoch_idx: The epoch index for the log.
        """
        return evaluate_and_log(self, data_loader, mode, epoch_idx)

    @in_ledger
    def predict(self, data_loader: Iterable) -> Any:
        """The model's outputs for every example of a loader, as numpy arrays in the loader's order.

        With several processes, each has those for the examples of its own loader.
        """
        carry = self.engine.to_evaluate(self.progress.carry)
        with self.ledger.spend(VALIDATION):
            return self.evaluator.predict(carry, data_loader, self._predict_step, self.first_look)

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

    @in_ledger
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
            self.checkpoints.save(self.checkpoints.store(directory), self.progress, build_record(self, metrics), keep)
        write_ledger_if_closed(self)

    @in_ledger
    def finish_saving(self) -> None:
        """Wait for checkpoints that are being written. One that failed is reported; the earlier ones are intact."""
        self.checkpoints.finish()
        write_ledger_if_closed(self)

    @in_ledger
    def resume(self) -> bool:
        """Continue from the newest good checkpoint of the callbacks' folder, as `TrainerConfig.resume` says.

        A folder that this trainer has not written to and must not continue from is refused, so that no run is mixed
        with another.

        Returns:
            Whether a checkpoint was loaded.
        """
        with self.ledger.spend(RESTORING):
            return resume_training(self)

    @contextlib.contextmanager
    def best_model(self) -> Iterator[None]:
        """For as long as it is open, the trainer holds the best model that its callbacks have saved."""
        self.finish_saving()
        with self.checkpoints.holding_best(self.checkpoint_callback, self.engine, self.progress):
            yield

    def evaluation_params(self) -> Any:
        """The parameters that evaluation uses, such as the average that `EMA` keeps; else those that are trained."""
        return self.engine.to_evaluate(self.progress.carry).params

    @in_ledger
    def export_params(self, path: str | pathlib.Path, with_state: bool = True) -> None:
        """Write the parameters to a safetensors file, those that evaluation uses.

        With several processes all have to call this, and the first one writes.

        Args:
            path: The file.
            with_state: Whether to write batch statistics and other variables of the model, too.
        """
        with self.ledger.spend(CHECKPOINTING):
            carry = self.progress.carry._replace(params=self.evaluation_params())
            export_weights(carry, path, with_state, self.processes.is_main)

    @in_ledger
    def import_params(
        self, path: str | pathlib.Path, strict: bool = True, rename: Callable[[str], str | None] | None = None
    ) -> ImportReport | None:
        """Take over parameters from a safetensors file; the optimizer stays as it is.

        Batch statistics and other variables of the model are taken over, too, if the file has them.

        Args:
            path: The file.
            strict: Whether the file must hold exactly the model's parameters. Otherwise those that fit are taken, and
                the log says which did not.
            rename: Without `strict`: from a name in the file, the path in the model; None leaves the parameter out.

        Returns:
            What was taken and what was not; None with `strict`.
        """
        with self.ledger.spend(RESTORING):
            carry = self.progress.carry
            self.progress.carry, report = import_weights(carry, self.carry_shardings, path, strict, rename)
        return report

    # --- loading ------------------------------------------------------------------------------------------------------

    @in_ledger
    def load_model(self, step_idx: int = -1, raise_if_not_found: bool = True) -> None:
        """Load the training from the run's folder: parameters, optimizer, batch statistics, position.

        Args:
            step_idx: The step; -1 for the latest that is not damaged.
            raise_if_not_found: Whether it is an error if there is none; otherwise a warning.
        """
        load_own(self, step_idx, raise_if_not_found)

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
        record = store_to_load(self).record(self.global_step if step_idx < 0 else step_idx)
        load_positions(self, record, train_loader, val_loader, test_loader)

    @in_ledger
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
        """Load a model from a folder of checkpoints, and say which step it was.

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
        """
        path, loaders = pathlib.Path(checkpoint_path), (train_loader, val_loader, test_loader)
        deletes_first = delete_params_before_loading
        return load_pretrained(self, path, step_idx, load_best, load_optimizer, loaders, deletes_first)

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
        return build_from_checkpoint(cls, pathlib.Path(checkpoint), exmp_input, batch_size)

    def restore_model(self, state_dict: dict[str, Any]) -> None:
        """Put a saved state in place of the current one, whose class is kept.

        Args:
            state_dict: The saved `params`, and optionally `step`, `opt_state`, `mutable_variables` and `rng`. The
                optimizer's state is taken over only if the current state has one.
        """
        is_pruned = self.progress.carry.opt_state is None
        carry = restore_carry(self.progress.carry, self.carry_shardings, state_dict, is_pruned)
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


def _refuse_optax(optimizer_config: Any) -> None:
    if isinstance(optimizer_config, optax.GradientTransformation):
        raise ConfigError(
            "optimizer_config: expected an OptimizerConfig, got an optax optimizer; write OptimizerConfig(name=...), "
            "or set self.tx and self.schedule in an init_optimizer of your own. trackside.Trainer takes it as it is"
        )
