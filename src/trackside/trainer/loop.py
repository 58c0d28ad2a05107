"""The training loop.

What happens, in order:

    on_training_start
    for each epoch:
        on_training_epoch_start
        for each step: batch, room among the steps in flight, call
            when a step has completed: finite check, its log row if one is due, on_training_step
            at a boundary: on_boundary of those who planned it, validation if one is due, on_settled
        on_training_epoch_end, the epoch's row, validation if one is due, on_settled
    on_training_end

The loop runs from boundary to boundary. In between it only feeds the device: it waits for the call before the last
`max_inflight_steps`, which bounds what is queued, and learns from that call's report whether the step was finite. Log
rows are written when their step is retired in this way, so a log row never waits for the device; rows of very short
steps are written a few at a time.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import numpy as np
from jax.profiler import StepTraceAnnotation

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.logger import Logger
from trackside.metrics import MetricLayout
from trackside.metrics.row import MetricTotals
from trackside.profiling.compiles import CompileCounter, compile_counter
from trackside.profiling.ledger import COMPILE, DEVICE_WAIT, DISPATCH, LOGGING
from trackside.profiling.sentinel import RecompileSentinel
from trackside.schedule import NEVER, At, Every, next_boundary
from trackside.trainer.batches import BatchSource
from trackside.trainer.call_record import CallRecord
from trackside.trainer.feed import BatchPlacement
from trackside.trainer.goal import Goal, Position
from trackside.trainer.hooks import Hooks
from trackside.trainer.meter import MAX_UNACCOUNTED_CALLS, StepMeter
from trackside.trainer.progress import ProgressBar
from trackside.trainer.run_events import RunEvents
from trackside.trainer.snapshot import validation_loss
from trackside.trainer.state import Carry
from trackside.trainer.step import SKIPPED
from trackside.trainer.step_rows import StepRows

LOGGER = logging.getLogger(__name__)

STEP_MARKER = "train"
"""What steps are called in a trace."""

CaptureState = Literal["none", "tracing", "finishing"]
"""Whether steps are being traced, or are disturbed by what happens to a trace that was taken."""


@dataclass
class TrainLoop:
    """One run of the loop, from a position to a goal."""

    call: Callable[[Carry, Any, Any], tuple[Carry, Any]]
    layout: MetricLayout
    fresh_vector: Any
    """The metrics before any step, on the device. Never donated, so it serves every reset."""
    placement: BatchPlacement
    position: Position
    goal: Goal
    loader: Iterable
    logger: Logger
    hooks: Hooks
    bar: ProgressBar
    meter: StepMeter
    events: RunEvents
    sentinel: RecompileSentinel | None = None
    max_inflight_steps: int = 2
    log_every_n_steps: int = -1
    check_val_every_n_steps: int = -1
    check_val_every_n_epoch: int = -1
    clock: Clock = SYSTEM_CLOCK
    status: str = ""
    """Why training stopped before its goal; empty while it goes on."""
    look_after_step: Callable[[int], None] | None = None
    """Called after each step where several processes have to agree on when to stop."""
    results: dict[str, dict[str, float]] = field(default_factory=dict)
    capture_state: CaptureState = "none"
    train_metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last epoch, or of the current one up to the last validation."""

    def __post_init__(self) -> None:
        self._window: deque[CallRecord] = deque()
        self._compiles: CompileCounter = compile_counter()
        self._is_first_call = True
        self.batch_form: Any = None
        self.bad_step: int | None = None
        self._capture_states: dict[int, CaptureState] = {}
        self._source = BatchSource(self.position, self.goal, self.loader, self.max_inflight_steps)
        self._rows = StepRows(self.position, self.layout, self.logger, self.meter.ledger)
        self._wants_steps = self.hooks.wants_steps
        self._log_plan = Every(self.log_every_n_steps, "log_every_n_steps")
        self._val_plan = Every(self.check_val_every_n_steps, "check_val_every_n_steps")
        self._all_plans = [self._val_plan, At(self.goal.last_step), *self.hooks.plans]
        self.position.place_in_epochs(self.goal.steps_per_epoch)
        if self.position.vector is None:
            self.position.vector = self.fresh_vector

    def run(self) -> None:
        """Train until the goal is reached or something stops it."""
        position, time, goal = self.position, self.position.time, self.goal.last_step
        time.start(self.clock.now(), self.clock.timestamp())
        self.events.write(
            "leg",
            leg=time.leg,
            step=position.step,
            epoch=position.epoch,
            train_time_s=time.earlier_s,
            goal=None if goal == NEVER else goal,
        )
        self.hooks.call("on_training_start")
        while not self.status and not self.goal.is_reached(self.position):
            self._start_epoch()
            self._train_epoch()
            if self.status == "interrupted":  # the epoch is not over: it goes on when training does
                self._settle()
                self.meter.log(position.step)
                return
            self._end_epoch()
        self.hooks.call("on_training_end")

    def request_stop(self, status: str) -> None:
        """Stop after the current step: `success` for a training that is done before its goal."""
        self.status = self.status or status

    def _start_epoch(self) -> None:
        position = self.position
        is_new = not position.is_epoch_open
        if is_new:
            position.epoch += 1
            position.epoch_start_step = position.step
            position.epoch_totals = None
            position.is_epoch_open = True
            position.time.epoch_start_s = position.time.total_s(self.clock.now())
        self._source.open_for_epoch(is_new)
        elapsed_s = position.time.epoch_s(self.clock.now())
        self.logger.start_epoch(position.epoch, position.step, "train", elapsed_s)
        self.bar.start_epoch(position.epoch)
        self.meter.step_times.break_off()
        self.hooks.call("on_training_epoch_start", position.epoch)

    def _train_epoch(self) -> None:
        position, epoch_end = self.position, self.goal.epoch_end(self.position)
        while position.step < epoch_end and not self.status:
            boundary = min(epoch_end, next_boundary(self._all_plans, position.step))
            step_before = position.step
            is_exhausted = not self._run_looking(boundary)
            if position.step > step_before:
                self._at_boundary()
            if is_exhausted and not self._source.start_again():
                break

    def _run_looking(self, boundary: float) -> bool:
        """Train up to a boundary, and hear after each step whether all processes are to stop; see `_run_until`."""
        if self.look_after_step is None:
            return self._run_until(boundary)
        position = self.position
        while position.step < boundary and not self.status:
            if not self._run_until(position.step + 1):
                return False
            self.look_after_step(position.step)
        return True

    def _run_until(self, boundary: float) -> bool:
        """Train up to a boundary.

        This is the hot loop: whatever is added here is paid for at every step.

        Returns:
            False if the loader ran out of batches before.
        """
        position, window, now = self.position, self._window, self.clock.now
        guard, batches, place = position.guard, position.batches, self.placement.place_train
        call = self._marked_call if self.capture_state == "tracing" else self.call
        meter, device, calls = self.meter, self.meter.device, self.meter.calls
        count_samples = meter.count_samples
        assert guard is not None
        assert batches is not None
        next_log_step = self._log_plan.next_boundary(position.step)
        num_steps = 1
        while position.step < boundary and not self.status:
            started_s = now()
            try:
                batch = guard.protect(next(batches))
            except StopIteration:
                return False
            if self._is_first_call:
                self._check_first(batch)
                count_samples = meter.count_samples
            batch_s = now()
            batch = place(batch)
            placed_s = now()
            was_blocked = False
            if len(window) >= self.max_inflight_steps:
                oldest = window[0].report
                was_blocked = not oldest.is_ready()
                np.asarray(oldest)  # the fastest way to wait: JAX keeps the copy for the next reader
            carry, vector = position.carry, position.vector
            num_compiles, ready_s = self._compiles.num_events, now()
            was_idle = not was_blocked and (not window or window[-1].report.is_ready())
            try:
                position.carry, position.vector = call(carry, vector, batch)
            except Exception:
                self.placement.check_train_batch(batch)  # most calls that fail were given a batch that cannot work
                raise
            dispatched_s = now()
            first_step = position.step + 1
            position.step += num_steps
            record = CallRecord(first_step, num_steps, position.epoch, ready_s, dispatched_s, position.vector, batch)
            window.append(record)
            size = count_samples(batch)
            calls.append((started_s, batch_s, placed_s, ready_s, dispatched_s, was_idle, was_blocked, num_steps, size))
            if position.step == next_log_step:  # its row is written when it has completed; the next starts from zero
                record.is_logged = True
                position.vector = self.fresh_vector
                next_log_step = self._log_plan.next_boundary(position.step)
            if self._compiles.num_events != num_compiles:
                self._account_compile(record, (carry, vector, batch), num_compiles)
            elif was_idle and ready_s > device.next_sample_s:
                device.sample(record.report, ready_s, dispatched_s)
            if len(calls) >= MAX_UNACCOUNTED_CALLS:
                meter.account()
            if len(window) > self.max_inflight_steps:  # completed: heard while the device is busy with the next
                self._retire(window.popleft())
            if guard.on_probation:
                self._retire_all()
        return True

    def _account_compile(self, record: CallRecord, args: tuple[Any, ...], num_compiles: int) -> None:
        """Something was compiled during a call: if it was the step, leave its time out, and say why."""
        self.meter.account()
        self.meter.device.pause()  # such a call tells nothing of the device
        self._rows.write()  # their time is theirs, whatever is left out from here on
        is_step = self.sentinel is None or self.sentinel.compiled(
            "train_step", args, step=record.last_step, function=self.call, since=num_compiles
        )
        if is_step:
            record.is_disturbed = True
            self.logger.exclude_time(record.dispatched_s - record.ready_s)
            self.meter.ledger.move(DISPATCH, COMPILE, record.dispatched_s - record.ready_s)

    def _marked_call(self, carry: Carry, vector: Any, batch: Any) -> tuple[Carry, Any]:
        """A call that TensorBoard and xprof recognise as a step."""
        with StepTraceAnnotation(STEP_MARKER, step_num=self.position.step + 1):
            return self.call(carry, vector, batch)

    def set_capture_state(self, who: object, state: CaptureState) -> None:
        """Say what a capture of somebody's does to the steps that follow, at a boundary."""
        self._capture_states[id(who)] = state
        states = self._capture_states.values()
        state = "tracing" if "tracing" in states else "finishing" if "finishing" in states else "none"
        if (state == "none") != (self.capture_state == "none"):
            change = self.logger.resume_timing if state == "none" else self.logger.pause_timing
            change(self.position.step)
        self.capture_state = state

    def _check_first(self, batch: Any) -> None:
        self._is_first_call = False
        self.placement.check_train_batch(batch)
        self.placement.agree_on_size(batch)
        self.meter.learn_batch(batch)
        self.batch_form = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jax.numpy.result_type(leaf)), batch
        )

    def _at_boundary(self) -> None:
        position = self.position
        # All are asked, whatever the first says: some ask the other processes, which may have other plans before them.
        answers = [plan.is_due(position.step) for plan in self.hooks.plans]
        is_planned = any(answers)
        if is_planned and self._settle():
            self.hooks.call_boundary(position.epoch, position.step)
        is_validated = self._val_plan.is_due(position.step) and not self._validates_after_epoch()
        if is_validated and self._settle():
            self._validate(f"val_step_{position.step}")
        if is_planned or is_validated:
            self.meter.step_times.break_off()
        if (is_planned or is_validated) and self.status != "nan" and position.step < self.goal.epoch_end(position):
            self.hooks.call("on_settled", position.epoch, position.step)

    def _validates_after_epoch(self) -> bool:
        """Whether the validation after this epoch comes at this very step and will serve for both."""
        position = self.position
        return position.step >= self.goal.epoch_end(position) and self._is_epoch_validated()

    def _is_epoch_validated(self) -> bool:
        return self.check_val_every_n_epoch > 0 and self.position.epoch % self.check_val_every_n_epoch == 0

    def _retire(self, record: CallRecord) -> None:
        """Do what was waiting for a call, which is waited for if need be."""
        report = np.asarray(record.report)
        if report[0] and not self.status:
            self._stop_at_non_finite(record, report)
        record.completed_s = self.clock.now()
        self.meter.step_times.add(
            record.last_step, record.completed_s, record.is_disturbed or self.capture_state != "none"
        )
        if record.is_logged:
            self._rows.add(record)
            self.meter.log_if_due(record.last_step)
        if self._wants_steps:
            step_metrics = self._rows.last_step(report)
            self.hooks.call("on_training_step", step_metrics, record.epoch, record.last_step)
        if record.dispatched_s >= self.bar.next_refresh_s:
            self.bar.show(record.last_step, self._rows.last_step(report), self.clock.now())

    def _retire_all(self) -> None:
        if self._window:
            with self.meter.ledger.spend(DEVICE_WAIT):
                np.asarray(self._window[-1].report)
        while self._window:
            self._retire(self._window.popleft())
        self._rows.write()

    def _settle(self) -> bool:
        """Wait for all steps in flight and take their metrics to the host, so that the totals are complete.

        Returns:
            Whether all of them were finite, so that the state may be validated and saved.
        """
        self._retire_all()
        position = self.position
        if self.sentinel is not None:
            self.sentinel.flush(position.step)
        self._rows.settle(self.fresh_vector)
        return self.status != "nan"

    def _stop_at_non_finite(self, record: CallRecord, report: np.ndarray) -> None:
        self.request_stop("nan")
        values = self._rows.last_step(report)
        shown = {name: value for name, value in values.items() if name == "loss" or not math.isfinite(value)}
        self.bad_step = record.last_step
        LOGGER.error(
            "step %d: the loss or the gradient norm is not finite (%s); training stops",
            record.last_step,
            ", ".join(f"{name}={value:g}" for name, value in shown.items()),
        )
        self.logger.found_nans = True
        self.logger.events.write(
            "non_finite", step=record.last_step, values={name: str(value) for name, value in shown.items()}
        )

    def _end_epoch(self) -> None:
        position = self.position
        self._settle()
        self.meter.end_epoch(position.epoch)
        totals = position.epoch_totals
        metrics: dict[str, Any] = totals.compute() if totals is not None else {}
        if totals is not None:
            self._report_skipped(totals)
        metrics["train_time"] = position.time.total_s(self.clock.now())
        self.hooks.call("on_training_epoch_end", metrics, position.epoch)
        self.meter.log(position.step)
        with self.meter.ledger.spend(LOGGING):
            self.train_metrics = self.logger.end_epoch(metrics, position.step)
        self.events.note(
            "metrics", mode="train_epoch", step=position.step, epoch=position.epoch, values=self.train_metrics
        )
        length = self.goal.steps_per_epoch
        was_cut = length is not None and position.step - position.epoch_start_step < length
        position.is_epoch_open = was_cut and self.goal.is_reached(position)
        if self.status in ("", "success") and self._is_epoch_validated():
            self._validate(f"val_epoch_{position.epoch}")
            if self._val_plan.is_due(position.step):
                self.results[f"val_step_{position.step}"] = self.results[f"val_epoch_{position.epoch}"]
        if self.status != "nan":
            self.hooks.call("on_settled", position.epoch, position.step)

    def _report_skipped(self, totals: MetricTotals) -> None:
        if SKIPPED not in self.layout.names:
            return
        num_skipped = round(totals.metrics.sum[self.layout.names.index(SKIPPED)])
        if num_skipped:
            LOGGER.warning("epoch %d: %d batches were skipped as not finite", self.position.epoch, num_skipped)
            self.logger.events.write("skipped", epoch=self.position.epoch, num_batches=num_skipped)

    def _validate(self, key: str) -> None:
        self.meter.device.pause()  # it is busy with other things
        metrics = self.hooks.validate(self.position.epoch)
        if not metrics:
            return
        self.results[key] = metrics
        if key.startswith("val_step") and self.position.epoch_totals is not None:
            self.train_metrics = self.position.epoch_totals.compute()
        best = self.position.best
        if not best or self._rank(metrics) < self._rank(best["val"]):
            self.position.best = {"train": self.train_metrics, "val": metrics}

    def _rank(self, metrics: dict[str, float]) -> float:
        rank = self.hooks.rank(metrics)
        return validation_loss(metrics) if rank is None else rank

    def close(self) -> None:
        """Keep what can be kept when an error ends the loop: rows whose steps have completed are logged."""
        try:
            self._retire_all()
        except Exception:
            LOGGER.warning("the last steps before the error could not be logged")
        self._rows.close()
        position, time = self.position, self.position.time
        time.in_steps_s = self.meter.ledger.totals().in_steps_s
        time.stop(self.clock.now())
        self.events.write(
            "leg_end",
            leg=time.leg,
            step=position.step,
            epoch=position.epoch,
            train_time_s=time.earlier_s,
            goodput=time.goodput(self.clock.timestamp()),
        )
