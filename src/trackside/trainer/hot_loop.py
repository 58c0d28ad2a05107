"""The hot loop: calls the compiled step from one boundary to the next, with a bounded number of calls in flight.

In between it only feeds the device: it waits where too many calls are in flight (`inflight_window.py`), which bounds
what is queued, and learns from a call's report whether the step was finite. Log rows are written when their step is
retired in this way, so a log row never waits for the device; rows of very short steps are written a few at a time.
"""

from collections import deque
from typing import Any

import numpy as np
from jax.profiler import StepTraceAnnotation

from trackside.callbacks import CallbackList
from trackside.fusing.batch_copies import is_trusted
from trackside.logger import Logger
from trackside.profiling.call_record import STEP_MARKER, CallRecord
from trackside.profiling.compiles import CompileCounter, compile_counter
from trackside.profiling.ledger_totals import DATA_WAIT, DEVICE_WAIT
from trackside.schedule import Every
from trackside.trainer.batch import num_bytes_of
from trackside.trainer.buffer_guard import BufferGuard
from trackside.trainer.compile_ahead import CompileAhead
from trackside.trainer.completed_calls import CompletedCalls
from trackside.trainer.engine import Engine
from trackside.trainer.feed import FusedFeed, PlainFeed
from trackside.trainer.inflight_window import InflightWindow
from trackside.trainer.loop_plan import Instruments, LoopPlan
from trackside.trainer.progress import Progress
from trackside.trainer.train_state import Carry

MAX_UNACCOUNTED_CALLS = 32


class HotLoop:
    """Makes steps.

    Args:
        engine: What it runs on.
        progress: The training.
        plan: What to train on, and how.
        on_step: Who hears of every step.
        logger: Gets the rows.
        instruments: What watches the loop.
        compiling: The program of the first call, where that is being compiled already.
    """

    def __init__(
        self,
        engine: Engine,
        progress: Progress,
        plan: LoopPlan,
        on_step: CallbackList,
        logger: Logger,
        instruments: Instruments,
        compiling: CompileAhead | None = None,
    ):
        self._call = engine.train_call(plan.layout)
        self._feed = self._build_feed(engine, progress, plan, instruments)
        self._is_fused = plan.steps_per_call.program == "fused"
        self._placement = engine.placement
        self._fresh_vector = self._vector = engine.fresh_vector(plan.layout)
        self._progress = progress
        self._logger = logger
        self._meter = instruments.meter
        self._ledger = instruments.meter.ledger
        self._ends = instruments.meter.ends
        self._measurements = instruments.measurements
        self._stop = instruments.stop
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
        self._log_plan = Every(plan.log_every_n_steps, "log_every_n_steps")
        self._completed = CompletedCalls(progress, self._log_plan, on_step, logger, instruments, self._is_fused)
        progress.totals.use_layout(plan.layout)
        progress.data.connect(
            plan.loader, plan.goal, self._inflight.limit, self._inflight.most, plan.ahead, plan.first_look
        )
        instruments.measurements.begin(plan.layout, self._fresh_vector)

    @property
    def bad_step(self) -> int | None:
        """The first step that was not finite."""
        return self._completed.bad_step

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

    def run_until(self, boundary: float) -> bool:
        """Train up to a boundary.

        Whatever is added here is paid for at every step.

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
                self.retire_all()
            if cursor.step >= kept_memory.next_step:
                kept_memory.look(cursor.step)
            if was_blocked and inflight.adapt(cursor.step, ready_s):
                self._change_window(guard)
        return True

    def _change_window(self, guard: BufferGuard) -> None:
        """From now on, more or fewer calls may be under way. The device stays busy meanwhile, if that is possible."""
        limit = self._inflight.limit
        if self._inflight.is_wide:
            guard.copy_all()
        if limit < self._ends.max_inflight:
            self._retire_all_but(limit)
        elif not self._is_fused:  # which has copies of all batches
            self.retire_all()
        self._ends.max_inflight = limit

    def _retire_all_but(self, number: int) -> None:
        """Wait until no more than some calls are in flight, and do what was waiting for the others."""
        num_excess = len(self._window) - number
        if num_excess > 0:
            with self._ledger.spend(DEVICE_WAIT):
                self._ends.wait_for_all(list(self._window)[:num_excess])
            self._completed.retire_first(self._window, num_excess)

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
        self._kept_memory.leave_out()
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

    def retire_all(self) -> None:
        """Wait for all calls in flight, and do what was waiting for them: for most while the device makes the last."""
        self._retire_all_but(1)
        self._logger.write_held_rows()
        self._retire_all_but(0)
        self._logger.write_held_rows()

    def settle(self) -> bool:
        """Wait for all steps in flight and take their metrics to the host, so that the totals are complete.

        Returns:
            Whether all of them were finite, so that the state may be validated and saved.
        """
        self.retire_all()
        self._kept_memory.break_off(self._progress.cursor.step)
        if self._sentinel is not None:
            self._sentinel.flush(self._progress.cursor.step)
        if self._vector is not self._fresh_vector:
            has_row = self._is_fused and self._log_plan.is_due(self._progress.cursor.step)
            if not has_row:
                self._progress.totals.settle(np.asarray(self._vector))
            self._vector = self._fresh_vector
        return self._stop.status != "nan"
