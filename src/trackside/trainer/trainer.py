"""The trainer: training and evaluation on what the set-up has built."""

import contextlib
import logging
import pathlib
from collections.abc import Iterable, Sequence

import jax

from trackside.callbacks import Callback, CallbackList
from trackside.errors import ConfigError
from trackside.findings import Finding
from trackside.profiling.ledger import Ledger, LedgerTotals
from trackside.profiling.ledger_text import render_ledger
from trackside.profiling.timers import profiler_writes_to
from trackside.trainer import summary
from trackside.trainer.batch import DataloaderModule
from trackside.trainer.evaluated import EvaluatedModel
from trackside.trainer.feed import loader_length
from trackside.trainer.goal import Goal
from trackside.trainer.hooks import Hooks
from trackside.trainer.interrupts import Interrupts
from trackside.trainer.loop import TrainLoop
from trackside.trainer.meter import StepMeter
from trackside.trainer.processes import check_same
from trackside.trainer.progress import ProgressBar
from trackside.trainer.run_lock import RunLock
from trackside.trainer.setup import Loaders, runs_here
from trackside.trainer.sharding import replicated
from trackside.trainer.watchdog import Watchdog

LOGGER = logging.getLogger(__name__)


class TrainerModule(EvaluatedModel):
    """Trains, evaluates and logs a model. Subclasses define `loss_function`.

    Args:
        trainer_config: How to train.
        model_config: Which model, on which mesh.
        optimizer_config: Which optimizer.
        batch: A batch from which shapes are inferred: arrays, or `jax.ShapeDtypeStruct` where the model's code has no
            `jax.debug` statements.
        mesh: A mesh to train on instead of the one that the model config describes.
    """

    ledger_totals: LedgerTotals | None = None
    """Where the time of the last training went, once it is over."""
    findings: Sequence[Finding] = ()
    """What the measurements say is wrong with it, the most severe first."""

    # --- training -----------------------------------------------------------------------------------------------

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
            steps_per_epoch: Steps per epoch, if it shall not be one pass over the loader.

        Returns:
            `train` and `val` metrics of the best model, those of each validation as `val_epoch_<n>` and
            `val_step_<n>`, and those of the test.
        """
        goal = Goal.of(num_epochs, num_train_steps, steps_per_epoch, loader_length(train_loader))
        with contextlib.ExitStack() as locks:
            for folder in self._folders_written() if jax.process_index() == 0 else ():
                locks.enter_context(RunLock(folder))
            locks.enter_context(profiler_writes_to(self.events))
            return self._train(goal, train_loader, val_loader, test_loader)

    def _folders_written(self) -> list[pathlib.Path]:
        """The run's folder, and those of checkpoints that lie elsewhere."""
        folders = [callback.directory for callback in self.callbacks if callback.directory is not None]
        run = self.logger.log_path
        if run is None:
            return folders
        return [run, *(folder for folder in folders if run.absolute() not in folder.absolute().parents)]

    def _train(
        self, goal: Goal, train_loader: Iterable, val_loader: Loaders | None, test_loader: Loaders | None
    ) -> dict[str, dict[str, float]]:
        self._check_trainable()
        passed_once = None if goal.loader_goes_on else train_loader
        _check_same_lengths({"train_loader": passed_once, "val_loader": val_loader, "test_loader": test_loader})
        self.set_dataset(DataloaderModule(train_loader, val_loader, test_loader))
        self.resume()
        loop = self._loop = self._build_loop(train_loader, val_loader, goal)
        status = "error"
        try:
            self.logger.on_training_start()
            self.log_training_info(
                goal.num_epochs, goal.num_train_steps, goal.steps_per_epoch, train_loader, val_loader, test_loader
            )
            if val_loader is not None and not goal.is_reached(self._position):
                self.test_eval_function(val_loader)
            with Interrupts(lambda: loop.request_stop("interrupted")) as interrupts, self._watchdog():
                loop.look_after_step = interrupts.look_after_step
                loop.run()
            if loop.status == "interrupted":
                self._save_interrupted()
                status = "interrupted"
                interrupts.leave()
            results = {**loop.results, **(self._position.best or {"train": loop.train_metrics})}
            if test_loader is not None and loop.status in ("", "success"):
                with self.best_model():
                    results["test"] = self.test_model(test_loader, apply_callbacks=True, epoch_idx=self._position.epoch)
            status = loop.status or "success"
            return results
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            self._close(loop, status)

    def fit(
        self,
        train_loader: Iterable | None = None,
        val_loader: Loaders | None = None,
        test_loader: Loaders | None = None,
        *,
        num_epochs: int | None = None,
        num_train_steps: int | None = None,
        steps_per_epoch: int | None = None,
        callbacks: Iterable[Callback] = (),
    ) -> dict[str, dict[str, float]]:
        """Train with more callbacks than those of the config; one epoch unless told otherwise.

        Args:
            train_loader: Batches to train on; those set by `set_dataset` if left out.
            val_loader: Batches to validate on; likewise.
            test_loader: Batches to test on; likewise.
            num_epochs: As in `train_model`.
            num_train_steps: As in `train_model`.
            steps_per_epoch: As in `train_model`.
            callbacks: A list or `CallbackList` of callbacks, called after those of the config.

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
        added = [callback for callback in callbacks if runs_here(callback.config)]
        for callback in added:
            callback.bind(self)
        self.callbacks = CallbackList([*before, *added])
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
        if self.logger.is_open:
            self.logger.events.write("stop", reason=reason, step=self.global_step)
        if self._loop is not None:
            self._loop.request_stop("success")

    def validates_epoch(self, epoch_idx: int) -> bool:
        """Whether a validation follows the given epoch."""
        every = self._loop.check_val_every_n_epoch if self._loop is not None else -1
        return every > 0 and epoch_idx % every == 0

    def _watchdog(self) -> Watchdog:
        return Watchdog(self.trainer_config.watchdog_timeout_s, lambda: self.global_step + self._evaluator.num_batches)

    def _save_interrupted(self) -> None:
        keeper = next((callback for callback in self.callbacks if callback.directory), None)
        if keeper is not None and self.trainer_config.save_on_interrupt:
            self.save_checkpoint(keeper.directory, keep=keeper.choose)
            self.finish_saving()

    def _check_trainable(self) -> None:
        if self._position.carry.opt_state is None:
            raise ConfigError("state: it has no optimizer state, so it can be evaluated but not trained")

    def _build_loop(self, train_loader: Iterable, val_loader: Loaders | None, goal: Goal) -> TrainLoop:
        config = self.trainer_config
        self.ledger = self.callbacks.ledger = Ledger(self.clock)
        self.ledger.start()
        layout = self.init_train_metrics().layout
        if self._train_call is None:
            self._train_call = self._compiler.compile_train(self._train_step, layout, self._placement.shardings)
            self._fresh_vector = jax.device_put(layout.initial, replicated(self.mesh))
        validates = val_loader is not None
        return TrainLoop(
            call=self._train_call,
            layout=layout,
            fresh_vector=self._fresh_vector,
            placement=self._placement,
            position=self._position,
            goal=goal,
            loader=train_loader,
            logger=self.logger,
            hooks=Hooks(self, self.callbacks, lambda epoch: self._eval_model_in_train_loop(val_loader, epoch)),
            bar=ProgressBar(self._shows_bar, self.global_step, goal.last_step, goal.num_epochs),
            events=self.events,
            meter=StepMeter(
                self.ledger,
                self.logger,
                self.events,
                config.max_inflight_steps,
                self._position.time,
                self._step_at_peak_s,
                self.clock,
            ),
            sentinel=None if config.debug else self._sentinel,
            max_inflight_steps=config.max_inflight_steps,
            log_every_n_steps=self.logger.config.log_every_n_steps if self._logs_rows else -1,
            check_val_every_n_steps=config.check_val_every_n_steps if validates else -1,
            check_val_every_n_epoch=config.check_val_every_n_epoch if validates else -1,
            clock=self.clock,
        )

    def _close(self, loop: TrainLoop, status: str) -> None:
        """Close everything, whatever happened, with the status that the run really has."""
        self.status = status
        loop.close()
        self._sentinel.flush(self.global_step)
        self.finish_saving()
        loop.bar.close(self.global_step)
        self.callbacks.finalize(status)
        self.ledger_totals = loop.meter.close(self.global_step)
        if where_it_went := render_ledger(self.ledger_totals, self._notes_on_speed(self.ledger_totals)):
            LOGGER.info("%s", where_it_went)
            self.findings = self.events.tell_findings(loop.meter.step_times.median_s())
        if loop.bad_step is not None:  # others were on their way behind it
            self.logger.step = loop.bad_step
        self.logger.finalize(status)

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
        length = _count(num_epochs, "epoch") if num_epochs is not None else _count(num_train_steps, "step")
        per_epoch = f" of {_count(steps_per_epoch, 'step')}" if num_epochs is not None and steps_per_epoch else ""
        LOGGER.info("Training for %s%s, from step %d.", length, per_epoch, self.global_step)
        for name, loader in (("train", train_loader), ("val", val_loader), ("test", test_loader)):
            LOGGER.info("%s data: %s", name, summary.describe_loader(loader))
        LOGGER.info("%s parameters, mesh %s", f"{self.get_num_params():,}", dict(self.mesh.shape))


def _check_same_lengths(loaders: dict[str, Loaders | None]) -> None:
    """Raise on every process if the loaders of one have more batches than those of another, as far as they know."""
    flat = {
        f"{name}, batches" + (f" of {key!r}" if key else ""): loader_length(one)
        for name, loader in loaders.items()
        for key, one in (loader.items() if isinstance(loader, dict) else [("", loader)])
    }
    check_same(flat, "let the longer ones drop their last batches, or set steps_per_epoch for training")


def _count(number: int | None, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
