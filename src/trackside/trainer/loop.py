"""The training loop.

What happens, in order:

    on_training_start
    for each epoch:
        on_training_epoch_start
        for each call of one step or several: batches, room among the calls in flight, call
            when it has completed, for each of its steps: finite check, its log row if one is due, on_training_step
            at a boundary: decide of every callback, on_boundary of those that act, validation if one is due, on_settled
        on_training_epoch_end, the epoch's row, validation if one is due, on_settled
    on_training_end

It runs from boundary to boundary. In between, `hot_loop.py` makes the steps.
"""

import logging
from collections.abc import Callable

from trackside.callbacks import CallbackList
from trackside.logger import Logger
from trackside.measured_run.leg import Leg
from trackside.profiling.ledger_totals import DATA_WAIT, LOGGING
from trackside.schedule import NEVER, At, Every, next_boundary
from trackside.trainer.compile_ahead import CompileAhead
from trackside.trainer.engine import Engine
from trackside.trainer.hot_loop import HotLoop
from trackside.trainer.loop_plan import Instruments, LoopPlan
from trackside.trainer.progress import Progress
from trackside.trainer.step_functions import SKIPPED

LOGGER = logging.getLogger(__name__)


class TrainLoop:
    """One run of the loop, from where a training is to its goal.

    Args:
        engine: What it runs on.
        progress: The training.
        plan: What to train on, how far, and how often to look up.
        callbacks: Who is called; the trainer's own hooks come first.
        validate: Evaluates on the validation set, with hooks and log row. Gives the metrics, and how good they are,
            lower being better.
        logger: Gets the rows.
        instruments: What watches the loop.
        compiling: The program of the first call, where that is being compiled already.
    """

    def __init__(
        self,
        engine: Engine,
        progress: Progress,
        plan: LoopPlan,
        callbacks: CallbackList,
        validate: Callable[[], tuple[dict[str, float], float]],
        logger: Logger,
        instruments: Instruments,
        compiling: CompileAhead | None = None,
    ):
        self.results: dict[str, dict[str, float]] = {}
        """The metrics of each validation."""
        self._progress = progress
        self._plan = plan
        self._callbacks = callbacks
        self._validate_now = validate
        self._logger = logger
        self._meter = instruments.meter
        self._ledger = instruments.meter.ledger
        self._bar = instruments.bar
        self._stop = instruments.stop
        self._interrupts = instruments.interrupts
        self._clock = instruments.clock
        self._validated_step = -1
        self._val_plan = Every(plan.check_val_every_n_steps, "check_val_every_n_steps")
        self._boundaries = [self._val_plan, At(plan.goal.last_step), callbacks]
        progress.cursor.place_in_epochs(plan.goal.steps_per_epoch)
        self._hot_loop = HotLoop(engine, progress, plan, callbacks.on_step, logger, instruments, compiling)

    @property
    def bad_step(self) -> int | None:
        """The first step that was not finite."""
        return self._hot_loop.bad_step

    @property
    def train_metrics(self) -> dict[str, float]:
        """Metrics of the last epoch, or of the current one up to the last validation."""
        return self._progress.metrics.latest("train")

    @property
    def _leg(self) -> Leg:
        return Leg(self._logger.run_log, self._progress.cursor, self._progress.time, self._clock)

    def run(self) -> None:
        """Train until the goal is reached or something stops it."""
        cursor, goal = self._progress.cursor, self._plan.goal
        self._leg.begin(None if goal.last_step == NEVER else int(goal.last_step), self._ledger.totals().wall_s)
        self._callbacks.call("on_training_start")
        while not self._stop.status and not goal.is_reached(cursor):
            self._start_epoch()
            self._train_epoch()
            if self._stop.status == "interrupted":  # the epoch is not over: it continues when training does
                self._hot_loop.settle()
                self._meter.log(cursor.step)
                return
            self._end_epoch()
        self._callbacks.call("on_training_end")

    # --- an epoch -----------------------------------------------------------------------------------------------------

    def _start_epoch(self) -> None:
        progress, cursor, time = self._progress, self._progress.cursor, self._progress.time
        is_new = cursor.begin_epoch()
        self._open_epoch(is_new)
        if not is_new and cursor.ended_step == cursor.step and self._is_epoch_over():
            cursor.is_epoch_open = False  # it was cut where it would have ended anyway
            is_new = cursor.begin_epoch()
            self._open_epoch(is_new)
        if is_new:
            progress.totals.begin_epoch()
            time.epoch_start_s = time.total_s(self._clock.now())
        self._logger.start_epoch(cursor.epoch, cursor.step, "train", time.epoch_s(self._clock.now()))
        self._bar.start_epoch(cursor.epoch)
        self._meter.step_times.break_off()
        self._callbacks.call("on_training_epoch_start", cursor.epoch)

    def _open_epoch(self, is_new: bool) -> None:
        with self._ledger.spend(DATA_WAIT):  # a loader may start its workers, or skip what was trained on
            self._progress.data.open_epoch(self._progress.cursor, is_new)

    def _train_epoch(self) -> None:
        cursor, epoch_end = self._progress.cursor, self._plan.goal.epoch_end(self._progress.cursor)
        while cursor.step < epoch_end and not self._stop.status:
            boundary = min(epoch_end, next_boundary(self._boundaries, cursor.step))
            step_before = cursor.step
            is_exhausted = not self._run_looking(boundary)
            if cursor.step > step_before:
                self._at_boundary()
            if is_exhausted and not self._start_again():
                break

    def _start_again(self) -> bool:
        """Start a loader again that has run out; False if the epoch is over with it."""
        with self._ledger.spend(DATA_WAIT):
            return self._progress.data.start_again(self._progress.cursor)

    def _run_looking(self, boundary: float) -> bool:
        """Train up to a boundary, as `run_until` does, and hear after each call whether all processes are to stop."""
        if not self._interrupts.looks_together:
            return self._hot_loop.run_until(boundary)
        cursor = self._progress.cursor
        while cursor.step < boundary and not self._stop.status:
            if not self._hot_loop.run_until(min(boundary, cursor.step + self._plan.steps_per_call.capacity)):
                return False
            self._interrupts.look(cursor.step)
        return True

    # --- between two steps --------------------------------------------------------------------------------------------

    def _at_boundary(self) -> None:
        cursor = self._progress.cursor
        acting = self._callbacks.decide(cursor.step)
        is_val_due = self._val_plan.is_due(cursor.step)
        if not acting and not is_val_due:
            return
        if not self._hot_loop.settle():
            return
        is_epoch_over = self._is_epoch_over()
        with self._logger.between_steps():
            self._callbacks.act(acting, cursor.epoch, cursor.step)
            if is_val_due and not (is_epoch_over and self._plan.validates_epoch(cursor.epoch)):
                self._validate(f"val_step_{cursor.step}")
            self._meter.step_times.break_off()
            if self._stop.status != "nan" and not is_epoch_over:
                self._callbacks.call("on_settled", cursor.epoch, cursor.step)

    def _is_epoch_over(self) -> bool:
        """Whether this was the last step of its epoch. All steps have to be complete."""
        cursor, goal, data = self._progress.cursor, self._plan.goal, self._progress.data
        if cursor.step >= goal.epoch_end(cursor):
            return True
        if goal.steps_per_epoch is not None:
            return False
        with self._ledger.spend(DATA_WAIT):  # it may take a look at the next batch
            return data.is_over(cursor.step)

    # --- the end of an epoch ------------------------------------------------------------------------------------------

    def _end_epoch(self) -> None:
        self._hot_loop.settle()
        with self._logger.between_steps():
            self._conclude_epoch()

    def _conclude_epoch(self) -> None:
        progress, cursor = self._progress, self._progress.cursor
        self._meter.end_epoch(cursor.epoch)
        was_cut = self._finish_pass()
        self._report_skipped()
        metrics = progress.totals.epoch_metrics()
        metrics["train_time"] = progress.time.total_s(self._clock.now())
        metrics = self._logger.complete_metrics(metrics)
        self._callbacks.call("on_training_epoch_end", metrics, cursor.epoch)
        self._meter.log(cursor.step)
        with self._ledger.spend(LOGGING):
            progress.metrics.add("train", cursor.step, self._logger.end_epoch(metrics, cursor.step, is_complete=True))
        cursor.is_epoch_open, cursor.ended_step = was_cut and self._plan.goal.is_reached(cursor), cursor.step
        if self._stop.status in ("", "success") and self._plan.validates_epoch(cursor.epoch):
            self._validate(f"val_epoch_{cursor.epoch}")
            if self._val_plan.is_due(cursor.step):
                self.results[f"val_step_{cursor.step}"] = self.results[f"val_epoch_{cursor.epoch}"]
        if self._stop.status != "nan":
            self._callbacks.call("on_settled", cursor.epoch, cursor.step)

    def _finish_pass(self) -> bool:
        """Let the loader do what it does after its last batch.

        Returns:
            Whether the epoch was cut before its end.
        """
        cursor, data, length = self._progress.cursor, self._progress.data, self._plan.goal.steps_per_epoch
        if self._stop.status == "nan":
            return False
        if length is None:
            return not data.is_exhausted
        was_cut = cursor.step - cursor.epoch_start_step < length
        if not was_cut:
            with self._ledger.spend(DATA_WAIT):
                data.finish_pass(cursor.step)
        return was_cut

    def _report_skipped(self) -> None:
        if not self._plan.skips_bad_batches:  # a metric of that name is the user's
            return
        num_skipped, epoch = round(self._progress.totals.epoch_sum(SKIPPED)), self._progress.cursor.epoch
        if num_skipped:
            LOGGER.warning("epoch %d: %d batches were skipped as not finite", epoch, num_skipped)
            self._logger.run_log.write("skipped", epoch=epoch, num_batches=num_skipped)

    def _validate(self, key: str) -> None:
        """Validate, unless this very step was validated already, and remember the result."""
        metrics, step = self._progress.metrics, self._progress.cursor.step
        if self._validated_step == step:
            self.results[key] = metrics.latest("val")
            return
        self._ledger.account()  # what is left out comes after these calls
        began_s = self._clock.now()
        values, rank = self._validate_now()
        self._meter.device.leave_out(self._clock.now() - began_s)  # it was busy with other things
        if not values:
            return
        self._validated_step = step
        self.results[key] = values
        metrics.add("val", step, values)
        train = metrics.at(step).get("train") or self._progress.totals.epoch_metrics()
        metrics.offer(train, values, rank)

    def close(self) -> None:
        """Keep what can be kept when an error ends the loop: rows whose steps have completed are logged."""
        self._progress.data.rest()
        try:
            self._hot_loop.retire_all()
        except Exception:
            LOGGER.warning("the last steps before the error could not be logged")
        self._leg.end(self._ledger.totals().in_steps_s)
