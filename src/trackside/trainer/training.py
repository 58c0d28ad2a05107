"""One call of `train_model`: locks, resuming, the loop, the test at the end, and closing everything in any case."""

import contextlib
import logging
import pathlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from trackside.callbacks import CallbackList, ModelCheckpoint
from trackside.errors import ConfigError
from trackside.monitor import validation_loss
from trackside.profiling.ledger_text import render_ledger
from trackside.profiling.timers import profiler_writes_to
from trackside.trainer.batch import DataloaderModule
from trackside.trainer.goal import Goal
from trackside.trainer.interrupts import Interrupts, StopRequest
from trackside.trainer.loaders import loader_length
from trackside.trainer.logged_evaluation import Loaders
from trackside.trainer.loop import TrainLoop
from trackside.trainer.loop_plan import Instruments, LoopPlan
from trackside.trainer.overridable import OwnHooks
from trackside.trainer.progress_bar import ProgressBar
from trackside.trainer.run_lock import RunLock
from trackside.trainer.step_meter import StepMeter
from trackside.trainer.watchdog import Watchdog

if TYPE_CHECKING:
    from trackside.trainer.trainer import TrainerModule

LOGGER = logging.getLogger(__name__)

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
            for folder in self._folders_written() if trainer.processes.is_main else ():
                locks.enter_context(RunLock(folder))
            locks.enter_context(profiler_writes_to(trainer.run_log))
            self._check()
            trainer.set_dataset(DataloaderModule(self._train_loader, self._val_loader, self._test_loader))
            trainer.resume()
            return self._train()

    def _folders_written(self) -> list[pathlib.Path]:
        """The run's folder, and those of checkpoints that are elsewhere."""
        folders = [one.directory for one in self._trainer.callbacks if isinstance(one, ModelCheckpoint)]
        run = self._trainer.logger.log_path
        if run is None:
            return folders
        return [run, *(folder for folder in folders if run.absolute() not in folder.absolute().parents)]

    def _check(self) -> None:
        if self._trainer.progress.carry.opt_state is None:
            raise ConfigError("state: it has no optimizer state, so it can be evaluated but not trained")
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

    def _train(self) -> Results:
        trainer, goal, stop = self._trainer, self._goal, StopRequest()
        trainer.stop_request = stop
        interrupts = Interrupts(stop, trainer.processes)
        instruments = self._build_instruments(stop, interrupts)
        loop = self._build_loop(instruments)
        status = "error"
        try:
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
                trainer.test_eval_function(self._val_loader)
            with interrupts, self._watchdog():
                loop.run()
            if stop.status == "interrupted":
                self._save_interrupted()
                status = "interrupted"
                interrupts.leave()
            results = {**loop.results, **(trainer.progress.metrics.best or {"train": loop.train_metrics})}
            if self._test_loader is not None and stop.status in ("", "success"):
                with trainer.best_model():
                    results["test"] = trainer.test_model(self._test_loader, True, trainer.epoch)
            status = stop.status or "success"
            return results
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            self._close(loop, instruments, status)

    def _build_instruments(self, stop: StopRequest, interrupts: Interrupts) -> Instruments:
        trainer, goal = self._trainer, self._goal
        measurements, max_inflight = trainer.measurements, trainer.trainer_config.max_inflight_steps
        time = trainer.progress.time
        return Instruments(
            StepMeter(trainer.ledger, trainer.logger, measurements, time, max_inflight, trainer.clock),
            measurements,
            ProgressBar(trainer.shows_bar, trainer.global_step, goal.last_step, goal.num_epochs),
            stop,
            interrupts,
            None if trainer.trainer_config.debug else trainer.sentinel,
            trainer.clock,
        )

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
        keeper = self._trainer.checkpoint_callback
        if keeper is not None and self._trainer.trainer_config.save_on_interrupt:
            self._trainer.save_checkpoint(keeper.directory, keep=keeper.choose)
            self._trainer.finish_saving()

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
