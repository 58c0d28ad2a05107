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

The loop runs from boundary to boundary. In between it only feeds the device: it waits where too many calls are in
flight (`inflight_window.py`), which bounds what is queued, and learns from a call's report whether the step was finite.
Log rows are written when their step is retired in this way, so a log row never waits for the device; rows of very short
steps are written a few at a time.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.profiler import StepTraceAnnotation

from trackside.callbacks import CallbackList
from trackside.logger import Logger
from trackside.measured_run.leg import Leg
from trackside.profiling.call_record import CallRecord
from trackside.profiling.compiles import CompileCounter, compile_counter
from trackside.profiling.ledger_totals import DATA_WAIT, DEVICE_WAIT, LOGGING
from trackside.schedule import NEVER, At, Every, next_boundary
from trackside.trainer.batch import num_bytes_of
from trackside.trainer.buffer_guard import BufferGuard, is_trusted
from trackside.trainer.compile_ahead import CompileAhead
from trackside.trainer.completed_calls import CompletedCalls
from trackside.trainer.engine import Engine
from trackside.trainer.feed import FusedFeed, PlainFeed
from trackside.trainer.inflight_window import InflightWindow
from trackside.trainer.loop_plan import Instruments, LoopPlan
from trackside.trainer.progress import Progress
from trackside.trainer.step_functions import SKIPPED
from trackside.trainer.train_state import Carry

LOGGER = logging.getLogger(__name__)

STEP_MARKER = "train"
"""What steps are called in a trace."""
MAX_UNACCOUNTED_CALLS = 32


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
        self._call = engine.train_call(plan.layout)
        self._feed = self._build_feed(engine, progress, plan, instruments)
        self._is_fused = plan.steps_per_call.program == "fused"
        self._placement = engine.placement
        self._fresh_vector = self._vector = engine.fresh_vector(plan.layout)
        self._progress = progress
        self._plan = plan
        self._callbacks = callbacks
        self._validate_now = validate
        self._logger = logger
        self._meter = instruments.meter
        self._ledger = instruments.meter.ledger
        self._ends = instruments.meter.ends
        self._measurements = instruments.measurements
        self._bar = instruments.bar
        self._stop = instruments.stop
        self._interrupts = instruments.interrupts
        self._sentinel = instruments.sentinel
        self._kept_memory = instruments.kept_memory
        self._clock = instruments.clock
        self._window: deque[CallRecord] = deque()
        batch_bytes = num_bytes_of(engine.placement.exmp_batch)
        self._inflight = InflightWindow(
            plan.max_inflight_steps,
            plan.can_widen,
            batch_bytes,
            is_copied=not is_trusted(plan.loader),
            steps_per_call=plan.steps_per_call.capacity_for(batch_bytes),
        )
        self._compiles: CompileCounter = compile_counter()
        self._is_first_call = True
        self._compiling = compiling
        self._validated_step = -1
        self._log_plan = Every(plan.log_every_n_steps, "log_every_n_steps")
        self._completed = CompletedCalls(
            progress, self._log_plan, callbacks.on_step, logger, instruments, self._is_fused
        )
        self._val_plan = Every(plan.check_val_every_n_steps, "check_val_every_n_steps")
        self._boundaries = [self._val_plan, At(plan.goal.last_step), callbacks]
        progress.cursor.place_in_epochs(plan.goal.steps_per_epoch)
        progress.totals.use_layout(plan.layout)
        progress.data.connect(
            plan.loader, plan.goal, self._inflight.limit, self._inflight.most, plan.ahead, plan.first_look
        )
        instruments.measurements.begin(plan.layout, self._fresh_vector)

    def _build_feed(
        self, engine: Engine, progress: Progress, plan: LoopPlan, instruments: Instruments
    ) -> PlainFeed | FusedFeed:
        if plan.steps_per_call.program == "plain":
            return PlainFeed(self._call, engine, progress.data)
        return FusedFeed(
            self._call,
            engine,
            progress.data,
            plan.layout,
            plan.steps_per_call,
            instruments.stop,
            plan.log_every_n_steps,
            instruments.clock.now,
        )

    @property
    def bad_step(self) -> int | None:
        """The first step that was not finite."""
        return self._completed.bad_step

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
                self._settle()
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
        """Train up to a boundary, and hear after each call whether all processes are to stop; see `_run_until`."""
        if not self._interrupts.looks_together:
            return self._run_until(boundary)
        cursor = self._progress.cursor
        while cursor.step < boundary and not self._stop.status:
            if not self._run_until(min(boundary, cursor.step + self._plan.steps_per_call.capacity)):
                return False
            self._interrupts.look(cursor.step)
        return True

    def _run_until(self, boundary: float) -> bool:
        """Train up to a boundary.

        This is the hot loop: whatever is added here is paid for at every step.

        Returns:
            False if the loader ran out of batches before.
        """
        progress, cursor, window, now = self._progress, self._progress.cursor, self._window, self._clock.now
        feed, stop = self._feed, self._stop
        marks_calls = self._measurements.capture_state == "tracing"
        feed.open(marks_calls)
        take, place, guard, retire = feed.take, feed.place, feed.guard, self._completed.retire_first
        ends, calls, inflight, kept_memory = self._ends, self._ledger.calls, self._inflight, self._kept_memory
        inflight.break_off()
        kept_memory.break_off()
        if inflight.is_wide:
            guard.copy_all()
        count_taken = feed.counting(self._meter.count_samples)
        next_log_step = self._log_plan.next_boundary(cursor.step)
        while cursor.step < boundary and (not stop.status or (feed.holds_batch and stop.status != "nan")):
            started_s = now()
            try:
                batch = take(cursor.step, boundary - cursor.step)
            except StopIteration:
                self._account_end_of_pass(started_s)
                return False
            if self._is_first_call:
                self._check_first(feed.latest)
                count_taken = feed.counting(self._meter.count_samples)
            batch_s = now()
            batch = place(batch)
            placed_s = now()
            was_blocked = False
            if len(window) >= inflight.limit:
                last_without_room = window[len(window) - inflight.limit]
                was_blocked = not last_without_room.report.is_ready()
                if was_blocked:
                    ends.wait_for(last_without_room)
            carry, vector, num_steps = progress.held, self._vector, feed.num_steps
            call = self._marked_call if marks_calls else feed.call
            num_compiles, ready_s = self._compiles.num_events, now()
            was_idle = not was_blocked and (not window or window[-1].report.is_ready())
            try:
                result = call(carry, vector, batch)
            except Exception:
                self._placement.check_train_batch(feed.latest)  # most calls that fail have a batch that cannot work
                raise
            progress.held, self._vector = result[0], result[1]
            dispatched_s = now()
            record = CallRecord(
                cursor.step + 1,
                num_steps,
                count_taken(batch),
                cursor.epoch,
                started_s,
                batch_s,
                placed_s,
                ready_s,
                dispatched_s,
                was_idle,
                was_blocked,
                result[-1],
                batch,
            )
            cursor.step += num_steps
            window.append(record)
            calls.append(record)
            if cursor.step >= next_log_step:  # its row is written when it has completed; the next starts from zero
                record.is_logged = True
                next_log_step = self._log_plan.next_boundary(cursor.step)
                if not self._is_fused:  # else the call does that, and a step that was not finite stays known to it
                    self._vector = self._fresh_vector
            if self._compiles.num_events != num_compiles:
                self._account_compile(record, (carry, vector, feed.latest), num_compiles)
            elif ready_s > ends.next_watch_s and not was_blocked:
                ends.watch(record)
            if len(calls) >= MAX_UNACCOUNTED_CALLS:
                self._ledger.account()
            if len(window) >= inflight.limit + inflight.num_retired:  # heard while the device is busy with the next
                retire(window, inflight.num_retired)
            if guard.on_probation:
                self._retire_all()
            if was_blocked:
                if cursor.step >= kept_memory.next_step:
                    kept_memory.look(cursor.step)
                if inflight.adapt(cursor.step, ready_s):
                    self._change_window(guard)
        return True

    def _change_window(self, guard: BufferGuard) -> None:
        """From now on, more or fewer calls may be under way."""
        if self._inflight.is_wide:
            guard.copy_all()
        self._retire_all()  # what is known of a call depends on how many could follow it; batches may not be copies
        self._ends.max_inflight = self._inflight.limit

    def _account_end_of_pass(self, started_s: float) -> None:
        """The loader took its time to say that it has no more batches."""
        waited_s = self._clock.now() - started_s
        before = self._ledger.switch(DATA_WAIT)  # until now, it counted for another part
        self._ledger.move(before, DATA_WAIT, waited_s)
        self._ledger.switch(before)

    def _account_compile(self, record: CallRecord, args: tuple[Any, ...], num_compiles: int) -> None:
        """Something was compiled during a call: if it was the step, leave its time out, and say why."""
        self._ledger.account()
        self._meter.device.pause()  # such a call says nothing about the device
        self._logger.write_held_rows()  # their time is theirs, whatever is left out from here on
        is_step = self._sentinel is None or self._sentinel.compiled(
            "train_step", args, step=record.first_step, function=self._call, since=num_compiles
        )
        if is_step:
            record.is_disturbed = True
            self._logger.exclude_time(record.dispatched_s - record.ready_s)

    def _marked_call(self, carry: Carry, vector: Any, batch: Any) -> tuple:
        """A call that TensorBoard and xprof recognize as a step."""
        first, num_steps = self._progress.cursor.step + 1, self._feed.num_steps
        with StepTraceAnnotation(STEP_MARKER, step_num=first, num_steps=num_steps):
            return self._feed.call(carry, vector, batch)

    def _check_first(self, batch: Any) -> None:
        self._is_first_call = False
        self._placement.check_train_batch(batch)
        self._placement.agree_on_size(batch)
        self._meter.learn_batch(batch)
        self._measurements.learn_batch(batch)
        if self._compiling is not None:
            self._compiling.around(self._feed, batch)
            self._compiling = None

    # --- between two steps --------------------------------------------------------------------------------------------

    def _at_boundary(self) -> None:
        cursor = self._progress.cursor
        acting = self._callbacks.decide(cursor.step)
        is_val_due = self._val_plan.is_due(cursor.step)
        if not acting and not is_val_due:
            return
        if not self._settle():
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

    def _retire_all(self) -> None:
        if self._window:
            with self._ledger.spend(DEVICE_WAIT):
                self._ends.wait_for_all(self._window)
        while self._window:
            self._completed.retire(self._window.popleft(), self._window)
        self._logger.write_held_rows()

    def _settle(self) -> bool:
        """Wait for all steps in flight and take their metrics to the host, so that the totals are complete.

        Returns:
            Whether all of them were finite, so that the state may be validated and saved.
        """
        self._retire_all()
        if self._sentinel is not None:
            self._sentinel.flush(self._progress.cursor.step)
        if self._vector is not self._fresh_vector:
            has_row = self._is_fused and self._log_plan.is_due(self._progress.cursor.step)
            if not has_row:
                self._progress.totals.settle(np.asarray(self._vector))
            self._vector = self._fresh_vector
        return self._stop.status != "nan"

    # --- the end of an epoch ------------------------------------------------------------------------------------------

    def _end_epoch(self) -> None:
        self._settle()
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
            self._retire_all()
        except Exception:
            LOGGER.warning("the last steps before the error could not be logged")
        self._leg.end(self._ledger.totals().in_steps_s)
