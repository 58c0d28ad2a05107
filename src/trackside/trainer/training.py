"""One call of `train_model`: locks, resuming, the loop, the test at the end, and closing everything in any case."""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from trackside.callbacks import CallbackList, ModelCheckpoint
from trackside.errors import ConfigError, NonFiniteError
from trackside.monitor import validation_loss
from trackside.profiling.ledger_text import render_ledger
from trackside.profiling.timers import profiler_writes_to
from trackside.run_layout import CHECKPOINTS_FOLDER
from trackside.schedule import NEVER
from trackside.trainer.batch import DataloaderModule
from trackside.trainer.goal import Goal
from trackside.trainer.interrupts import Interrupts, StopRequest
from trackside.trainer.loaders import loader_length
from trackside.trainer.logged_evaluation import Loaders
from trackside.trainer.loop import TrainLoop
from trackside.trainer.loop_plan import Instruments, LoopPlan
from trackside.trainer.monitor_check import check_monitors
from trackside.trainer.overridable import OwnHooks
from trackside.trainer.progress_bar import ProgressBar, ProgressLines
from trackside.trainer.run_folder import check_still_free
from trackside.trainer.run_lock import RunLock, check_unlocked
from trackside.trainer.step_meter import StepMeter
from trackside.trainer.watchdog import Watchdog

if TYPE_CHECKING:
    from trackside.trainer.trainer import TrainerModule

LOGGER = logging.getLogger(__name__)

MAX_STEPS = 2**31 - 1

Results = dict[str, dict[str, float]]


class Training:
    """One call of `train_model`.

    Args:
        trainer: Whose parts it works with.
        goal: How far to train.
        train_loader: Batches to train on.
        val_loader: Batches to validate on, if any.
        test_loader: Batches to test on at the end, if any.
    """

    def __init__(
        self,
        trainer: "TrainerModule",
        goal: Goal,
        train_loader: Iterable,
        val_loader: Loaders | None,
        test_loader: Loaders | None,
    ):
        self._trainer = trainer
        self._goal = goal
        self._train_loader = train_loader
        self._val_loader = val_loader
        self._test_loader = test_loader

    def run(self) -> Results:
        """Train, and give the metrics that `train_model` returns."""
        trainer = self._trainer
        with contextlib.ExitStack() as locks:
            try:
                if trainer.processes.is_main:
                    locks.enter_context(self._lock_folders())
                locks.enter_context(profiler_writes_to(trainer.run_log))
                self._prepare()
                stop = trainer.stop_request = StopRequest()
                interrupts = Interrupts(stop, trainer.processes)
                instruments = self._build_instruments(stop, interrupts)
                loop = self._build_loop(instruments)
            except BaseException:
                trainer.logger.finalize(trainer.status)  # of a run that never began, nothing is said
                raise
            results = self._train(loop, instruments)
        interrupts.leave()
        if trainer.status == "nan" and trainer.trainer_config.raise_on_nan:
            raise NonFiniteError(
                f"training stopped at step {trainer.logger.step}: the loss or the gradient norm was not finite; the "
                "run's log has the values"
            )
        return results

    def _prepare(self) -> None:
        """Open the run's log, and be where the training is to start."""
        trainer, log = self._trainer, self._trainer.run_log
        log.attach()
        log.open()
        if log.path is not None and not log.has_trained and not log.num_earlier_legs:
            check_still_free(log.path, trainer.processes)
        self._check()
        trainer.set_dataset(DataloaderModule(self._train_loader, self._val_loader, self._test_loader))
        is_resumed = trainer.resume()
        log.write_config_so_far()
        if not log.has_trained:
            time = trainer.progress.time
            time.leg = max(log.num_earlier_legs + 1, time.leg if is_resumed else 1)

    def _lock_folders(self) -> contextlib.ExitStack:
        """Lock the run's folder and those of checkpoints that are elsewhere, each against other trainings.

        A run's default folder of checkpoints has no lock of its own: the run's stands for it. So both are looked at,
        after locking, from either side.
        """
        run = self._trainer.logger.log_path
        default = None if run is None else (run / CHECKPOINTS_FOLDER).resolve()
        folders = {one.directory.resolve() for one in self._trainer.callbacks if isinstance(one, ModelCheckpoint)}
        elsewhere = sorted(folders - {default})
        with contextlib.ExitStack() as locks:
            for folder in [*([] if run is None else [run]), *elsewhere]:
                locks.enter_context(RunLock(folder))
            check_unlocked(default if default in folders else None)
            for folder in elsewhere:
                check_unlocked(folder.parent if folder.name == CHECKPOINTS_FOLDER else None)
            return locks.pop_all()

    def _check(self) -> None:
        if self._trainer.progress.carry.opt_state is None:
            raise ConfigError("state: it has no optimizer state, so it can be evaluated but not trained")
        if MAX_STEPS < self._goal.last_step < NEVER:
            raise ConfigError(
                f"num_epochs, num_train_steps: they ask for {self._goal.last_step:,} steps; steps are counted in 32 "
                f"bits, so choose at most {MAX_STEPS:,}"
            )
        loaders = {
            "train_loader": None if self._goal.is_stream else self._train_loader,
            "val_loader": self._val_loader,
            "test_loader": self._test_loader,
        }
        lengths = {
            f"{name}, batches" + (f" of {key!r}" if key else ""): loader_length(one)
            for name, loader in loaders.items()
            for key, one in (loader.items() if isinstance(loader, dict) else [("", loader)])
        }
        fix = "let the longer ones drop their last batches, or set steps_per_epoch for training"
        self._trainer.processes.check_same(lengths, fix)

    def _train(self, loop: TrainLoop, instruments: Instruments) -> Results:
        """Train, save and test. Signals are caught until the last save is on disk and everything is closed."""
        stop, interrupts, results, status = instruments.stop, instruments.interrupts, {}, "error"
        with contextlib.ExitStack() as caught:
            try:
                self._announce()
                caught.enter_context(interrupts)
                with self._watchdog():
                    loop.run()
                self._trainer.finish_saving()
                if interrupts.received is not None and stop.status != "nan":
                    status = "interrupted"
                    self._save_interrupted()
                else:
                    with interrupts.lifted():
                        results = self._conclude(loop, stop)
                    status = stop.status or "success"
            except KeyboardInterrupt:
                status = "interrupted"
                raise
            finally:
                self._close(loop, instruments, status)
        return results

    def _announce(self) -> None:
        """Say what is about to be trained, and find out on one batch whether validation will work."""
        trainer, goal = self._trainer, self._goal
        trainer.logger.on_training_start()
        trainer.log_training_info(
            goal.num_epochs,
            goal.num_train_steps,
            goal.steps_per_epoch,
            self._train_loader,
            self._val_loader,
            self._test_loader,
        )
        if goal.is_reached(trainer.progress.cursor):
            LOGGER.info("nothing to train: %s", goal.why_nothing_is_left(trainer.progress.cursor))
        elif self._val_loader is not None:
            metrics = trainer.test_eval_function(self._val_loader)
            if metrics is not None:
                check_monitors(trainer.callbacks, trainer, trainer.validates, metrics)

    def _conclude(self, loop: TrainLoop, stop: StopRequest) -> Results:
        trainer = self._trainer
        results = {**loop.results, **(trainer.progress.metrics.best or {"train": loop.train_metrics})}
        if self._test_loader is not None and stop.status in ("", "success"):
            with trainer.best_model():
                results["test"] = trainer.test_model(self._test_loader, True, trainer.epoch)
        return results

    def _build_instruments(self, stop: StopRequest, interrupts: Interrupts) -> Instruments:
        trainer = self._trainer
        measurements, max_inflight = trainer.measurements, trainer.trainer_config.max_inflight_steps
        time = trainer.progress.time
        return Instruments(
            StepMeter(trainer.ledger, trainer.logger, measurements, time, max_inflight, trainer.clock),
            measurements,
            self._build_progress(),
            stop,
            interrupts,
            None if trainer.trainer_config.debug else trainer.sentinel,
            trainer.clock,
        )

    def _build_progress(self) -> ProgressBar | ProgressLines:
        trainer, goal = self._trainer, self._goal
        if trainer.shows_bar or not trainer.processes.is_main:
            return ProgressBar(trainer.shows_bar, trainer.global_step, goal.last_step, goal.num_epochs)
        return ProgressLines(goal.last_step)

    def _build_loop(self, instruments: Instruments) -> TrainLoop:
        trainer, config, validates = self._trainer, self._trainer.trainer_config, self._val_loader is not None
        plan = trainer.loop_plan = LoopPlan(
            self._goal,
            self._train_loader,
            trainer.init_train_metrics().layout,
            config.max_inflight_steps,
            log_every_n_steps=trainer.logger.config.log_every_n_steps if trainer.logs_rows else -1,
            check_val_every_n_steps=config.check_val_every_n_steps if validates else -1,
            check_val_every_n_epoch=config.check_val_every_n_epoch if validates else -1,
        )
        hooks = CallbackList([OwnHooks(trainer), *trainer.callbacks], trainer.ledger)
        return TrainLoop(trainer.engine, trainer.progress, plan, hooks, self._validate, trainer.logger, instruments)

    def _validate(self) -> tuple[dict[str, float], float]:
        metrics = self._trainer._eval_model_in_train_loop(self._val_loader, self._trainer.epoch)
        return metrics, self._rank(metrics)

    def _rank(self, metrics: Mapping[str, float]) -> float:
        """How good a validation is, lower being better: by what the checkpoints are chosen by, or by its loss."""
        trainer, keeper = self._trainer, self._trainer.checkpoint_callback
        if keeper is None or keeper.monitor is None:
            return validation_loss(metrics)
        return keeper.rank({**trainer.progress.metrics.at(trainer.global_step), "val": metrics})

    def _watchdog(self) -> Watchdog:
        trainer = self._trainer
        return Watchdog(
            trainer.trainer_config.watchdog_timeout_s, lambda: trainer.global_step + trainer.evaluator.num_batches
        )

    def _save_interrupted(self) -> None:
        trainer, keeper = self._trainer, self._trainer.checkpoint_callback
        step = trainer.global_step
        if keeper is None or not trainer.trainer_config.save_on_interrupt:
            LOGGER.info("stopped after step %d", step)
            return
        trainer.save_checkpoint(keeper.directory, keep=keeper.choose)
        trainer.finish_saving()
        if trainer.processes.is_main and step in trainer.checkpoints.store(keeper.directory).steps():
            first = "" if trainer.trainer_config.resume != "never" else "set resume='auto' and "
            LOGGER.info("saved step %d; %srun the same command to resume", step, first)

    def _close(self, loop: TrainLoop, instruments: Instruments, status: str) -> None:
        """Close everything, whatever happened, with the status that the run really has."""
        trainer, meter = self._trainer, instruments.meter
        trainer.status = status
        loop.close()
        trainer.sentinel.flush(trainer.global_step)
        trainer.finish_saving()
        instruments.bar.close(trainer.global_step)
        trainer.callbacks.finalize(status)
        totals = trainer.ledger_totals = meter.close(trainer.global_step)
        if where_it_went := render_ledger(totals, trainer.progress.time.notes(totals, trainer.clock.timestamp())):
            LOGGER.info("%s", where_it_went)
            trainer.findings = meter.conclude()
        trainer.logger.finalize(status, loop.bad_step)
