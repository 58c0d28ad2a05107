"""One call of `train_model`: locks, resuming, the loop, the test at the end, and closing everything in any case."""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import jax

from trackside.callbacks import CallbackList, ModelCheckpoint
from trackside.errors import ConfigError, NonFiniteError
from trackside.fusing.loops import names_operations
from trackside.measured_run.batch_size import loader_length
from trackside.measured_run.closing import RunEnd
from trackside.measured_run.in_ledger import accounting
from trackside.measured_run.interrupts import Interrupts, StopRequest
from trackside.measured_run.loader_description import describe_loaders
from trackside.measured_run.progress_bar import ProgressBar, ProgressLines
from trackside.measured_run.run_folder import check_still_free
from trackside.measured_run.run_lock import RunLock, check_unlocked
from trackside.measured_run.step_meter import StepMeter
from trackside.metrics import MetricLayout
from trackside.monitor import validation_loss
from trackside.profiling.ledger_totals import SETUP
from trackside.profiling.timers import profiler_writes_to
from trackside.run_layout import CHECKPOINTS_FOLDER
from trackside.schedule import NEVER
from trackside.trainer.background_program import may_compile_in_background
from trackside.trainer.batch import DataloaderModule, num_bytes_of
from trackside.trainer.compile_ahead import CompileAhead, form_of, may_compile_ahead
from trackside.trainer.feed import first_call
from trackside.trainer.goal import Goal
from trackside.trainer.inflight_window import smallest_window
from trackside.trainer.kept_memory import KeptMemory
from trackside.trainer.logged_evaluation import Loaders, validate
from trackside.trainer.loop import TrainLoop
from trackside.trainer.loop_plan import Instruments, LoopPlan
from trackside.trainer.lost_process import leave_alone, means_lost_process, report_lost_process
from trackside.trainer.monitor_check import check_monitors, epoch_metric_names
from trackside.trainer.overridable import Overridable, OwnHooks
from trackside.trainer.read_ahead import AheadPlan
from trackside.trainer.steps_per_call import StepsPerCall, choose_steps_per_call
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
        self._outcome = ""  # what became of a training that was interrupted

    def run(self) -> Results:
        """Train, and give the metrics that `train_model` returns."""
        with accounting(self._trainer.ledger, self._trainer.compile_cache):
            return self._run()

    def _run(self) -> Results:
        trainer = self._trainer
        with contextlib.ExitStack() as locks:
            try:
                if trainer.processes.is_main:
                    locks.enter_context(self._lock_folders())
                locks.enter_context(profiler_writes_to(trainer.run_log))
                stop = trainer.stop_request = StopRequest()
                interrupts = Interrupts(stop, trainer.processes)
                with trainer.ledger.spend(SETUP):
                    self._prepare()
                    instruments = self._build_instruments(stop, interrupts)
                    loop = self._build_loop(instruments)
            except BaseException:
                trainer.logger.finalize(trainer.status)  # of a run that never began, nothing is said
                raise
            results = self._train(loop, instruments)
        interrupts.leave(self._outcome)
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
        trainer.sentinel.flush()  # what was compiled to get here, before something else compiles for long
        if log.path is not None and not log.has_trained and not log.num_earlier_legs:
            check_still_free(log.path, trainer.processes)
        self._check()
        trainer.set_dataset(DataloaderModule(self._train_loader, self._val_loader, self._test_loader))
        self._write_what_findings_need()
        is_resumed = trainer.resume()
        log.write_config_so_far()
        if not log.has_trained:
            time = trainer.progress.time
            time.leg = max(log.num_earlier_legs + 1, time.leg if is_resumed else 1)

    def _write_what_findings_need(self) -> None:
        """Write what the loaders and the model are, and which findings are not wanted."""
        log, silenced = self._trainer.run_log, self._trainer.trainer_config.silence_findings
        loaders = {"train": self._train_loader, "val": self._val_loader, "test": self._test_loader}
        num_ahead = self._trainer.trainer_config.prefetch_batches
        described = {name: loader.to_dict() for name, loader in describe_loaders(loaders, num_ahead).items()}
        log.write_environment({"loaders": described, "library": self._trainer.engine.adapter.library})
        if silenced or log.facts().silenced:  # also those that an earlier leg did not want
            log.write("silence", findings=list(silenced))

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
        if self._trainer.progress.form.opt_state is None:
            raise ConfigError("state: it has no optimizer state, so it can be evaluated but not trained")
        if MAX_STEPS < self._goal.last_step < NEVER:
            raise ConfigError(
                f"num_epochs, num_train_steps: they ask for {self._goal.last_step:,} steps; steps are counted in 32 "
                f"bits, so choose at most {MAX_STEPS:,}"
            )
        self._check_folders()
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

    def _check_folders(self) -> None:
        """Raise if two callbacks keep checkpoints in one folder: each would delete what the other keeps."""
        keepers = [one for one in self._trainer.callbacks if isinstance(one, ModelCheckpoint)]
        folders = [one.directory.absolute() for one in keepers] if len(keepers) > 1 else []
        if len(set(folders)) < len(folders):
            shared = next(folder for folder in folders if folders.count(folder) > 1)
            raise ConfigError(
                f"callbacks: several keep checkpoints in {shared}, and each would delete what another keeps; give each "
                "CheckpointConfig a dirpath of its own"
            )

    def _train(self, loop: TrainLoop, instruments: Instruments) -> Results:
        """Train, save and test. Signals are caught until the last save is on disk and everything is closed."""
        stop, interrupts, results, status = instruments.stop, instruments.interrupts, {}, "error"
        is_alone = False
        with contextlib.ExitStack() as caught:
            try:
                with self._trainer.ledger.spend(SETUP):
                    self._announce()
                    self._trainer.progress.make_first()
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
            except Exception as error:
                is_alone = self._trainer.processes.are_several and means_lost_process(error)
                if is_alone:
                    report_lost_process(error)
                raise
            finally:
                self._close(loop, instruments, status, is_alone)
                if is_alone:
                    leave_alone()
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
        else:
            self._check_monitors()

    def _check_monitors(self) -> None:
        """Fail before the first step if a callback monitors what will never be logged."""
        trainer, plan = self._trainer, self._trainer.loop_plan
        assert plan is not None
        if trainer.logger.metric_postprocess_fn is None:  # what it adds is known only once there are values
            names = epoch_metric_names(plan.layout)
            check_monitors(trainer.callbacks, trainer, trainer.validates, "train", names)
        if self._val_loader is not None:
            metrics = trainer.test_eval_function(self._val_loader)
            if metrics is not None:
                check_monitors(trainer.callbacks, trainer, trainer.validates, "val", metrics)

    def _conclude(self, loop: TrainLoop, stop: StopRequest) -> Results:
        trainer = self._trainer
        results = {**loop.results, **(trainer.progress.metrics.best or {"train": loop.train_metrics})}
        if self._test_loader is not None and stop.status in ("", "success"):
            with trainer.best_model():
                results["test"] = trainer.test_model(self._test_loader, True, trainer.epoch)
        return results

    def _build_instruments(self, stop: StopRequest, interrupts: Interrupts) -> Instruments:
        trainer = self._trainer
        measurements, max_inflight = trainer.measurements, smallest_window(trainer.trainer_config.max_inflight_steps)
        time = trainer.progress.time
        trainer.meter = StepMeter(trainer.ledger, trainer.logger, measurements, time, max_inflight, trainer.clock)
        return Instruments(
            trainer.meter,
            measurements,
            self._build_progress(),
            stop,
            interrupts,
            self._build_kept_memory(),
            None if trainer.trainer_config.debug else trainer.sentinel,
            trainer.clock,
        )

    def _build_kept_memory(self) -> KeptMemory:
        trainer = self._trainer
        is_on_cpu = trainer.engine.mesh.devices.flat[0].platform == "cpu"
        return KeptMemory(trainer.run_log, is_on_cpu and trainer.trainer_config.keep_host_memory)

    def _build_progress(self) -> ProgressBar | ProgressLines:
        trainer, goal = self._trainer, self._goal
        if trainer.shows_bar or not trainer.processes.is_main:
            return ProgressBar(trainer.shows_bar, trainer.global_step, goal.last_step, goal.num_epochs)
        return ProgressLines(goal.last_step)

    def _build_loop(self, instruments: Instruments) -> TrainLoop:
        trainer, config, validates = self._trainer, self._trainer.trainer_config, self._val_loader is not None
        trainer.engine.forget_traces()
        layout = trainer.init_train_metrics().layout
        hooks = CallbackList([OwnHooks(trainer), *trainer.callbacks], trainer.ledger)
        steps_per_call = self._choose_steps_per_call(layout, hooks)
        # Several steps take their batches stacked, which is done on the host.
        send = trainer.engine.placement.send_ahead if steps_per_call.program == "plain" else None
        plan = trainer.loop_plan = LoopPlan(
            self._goal,
            self._train_loader,
            layout,
            config.max_inflight_steps,
            trainer.engine.mesh.size == 1 and not any(callback.acts_on_steps for callback in hooks.on_step),
            steps_per_call,
            AheadPlan(config.prefetch_batches, config.prefetch_max_bytes, send),
            trainer.first_look,
            log_every_n_steps=trainer.logger.config.log_every_n_steps if trainer.logs_rows else -1,
            check_val_every_n_steps=config.check_val_every_n_steps if validates else -1,
            check_val_every_n_epoch=config.check_val_every_n_epoch if validates else -1,
            skips_bad_batches=config.skip_bad_batches,
        )
        compiling = self._compile_ahead(plan)
        trainer.engine.forget_traces()
        validate, logger = self._validate, trainer.logger
        return TrainLoop(trainer.engine, trainer.progress, plan, hooks, validate, logger, instruments, compiling)

    def _compile_ahead(self, plan: LoopPlan) -> CompileAhead | None:
        """Begin to compile the training step, if what it is compiled for is known already."""
        trainer = self._trainer
        if (
            not may_compile_in_background(trainer.trainer_config.debug, trainer.processes)
            or self._goal.is_reached(trainer.progress.cursor)
            or not may_compile_ahead(trainer.callbacks, trainer, Overridable)
        ):
            return None
        engine, batch = trainer.engine, trainer.exmp_batch
        try:
            program = plan.layout, plan.steps_per_call, *form_of(batch)
            if program in engine.compiled_ahead:
                return None
            engine.compiled_ahead.add(program)
            call, args = first_call(engine, plan.layout, plan.steps_per_call, batch)
            args = (trainer.progress.form, engine.fresh_vector(plan.layout), *args)
            return CompileAhead(call, args, batch, trainer.ledger, trainer.compile_cache)
        except Exception:  # the first call fails too, and its batch is the one to be named then
            LOGGER.debug("the training step could not be traced ahead of its first call", exc_info=True)
            return None

    def _choose_steps_per_call(self, layout: MetricLayout, hooks: CallbackList) -> StepsPerCall:
        trainer, engine, progress = self._trainer, self._trainer.engine, self._trainer.progress
        wanted = trainer.trainer_config.steps_per_call
        cost = None if wanted == 1 else engine.step_cost(layout, progress.form)
        if wanted not in (1, "auto") and cost is not None and not cost.keeps_form:
            raise ConfigError(
                f"steps_per_call={wanted}: the training step changes the type or shape of an array of the state, so "
                "steps cannot follow each other in one program; set it to 1, or keep the types as they are"
            )
        chosen = choose_steps_per_call(
            wanted,
            progress.step_program,
            cost,
            num_bytes_of(engine.placement.exmp_batch),
            engine.mesh.size,
            jax.default_backend() == "cpu",
            names_operations() or any(callback.acts_on_steps for callback in hooks.on_step),
            layout.initial.nbytes,
        )
        progress.step_program = chosen.program
        if cost is not None:
            trainer.run_log.write_environment({"can_fuse_steps": chosen.program == "plain" and cost.keeps_form})
        return chosen

    def _validate(self) -> tuple[dict[str, float], float]:
        assert self._val_loader is not None
        metrics = validate(self._trainer, self._val_loader, self._trainer.epoch)
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
            self._say_outcome(f"stopped after step {step}")
            return
        trainer.save_checkpoint(keeper.directory, keep=keeper.choose)
        trainer.finish_saving()
        if trainer.processes.is_main and step in trainer.checkpoints.store(keeper.directory).steps():
            resumes = trainer.resumes_by_itself or trainer.trainer_config.resume != "never"
            first = "" if resumes else "set resume='auto' and "
            self._say_outcome(f"saved step {step}; {first}run the same command to resume")

    def _say_outcome(self, outcome: str) -> None:
        self._outcome = outcome
        LOGGER.info("%s", outcome)

    def _close(self, loop: TrainLoop, instruments: Instruments, status: str, is_alone: bool) -> None:
        """Close everything, whatever happened, with the status that the run really has.

        Args:
            loop: The loop.
            instruments: What watched it.
            status: How the training ended.
            is_alone: Whether another process is gone, so that a checkpoint that is being saved never gets complete.
        """
        trainer = self._trainer
        trainer.status = status
        loop.close()
        trainer.sentinel.flush(trainer.global_step)
        if not is_alone:
            trainer.finish_saving()
        end = RunEnd(
            trainer.logger, instruments.meter, trainer.callbacks, instruments.bar, trainer.progress.time, trainer.clock
        )
        try:
            end.close(status, trainer.global_step, loop.bad_step)
        finally:
            trainer.ledger_totals, trainer.findings = end.totals, end.findings
