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
from typing import Any

import numpy as np

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import DataError
from trackside.logger import Logger
from trackside.metrics import MetricLayout, MetricTotals, RowReader
from trackside.profiling.compiles import CompileCounter, compile_counter
from trackside.schedule import At, Every, next_boundary
from trackside.trainer.call_record import CallRecord
from trackside.trainer.feed import BatchPlacement, BufferGuard, open_loader
from trackside.trainer.goal import Goal, Position
from trackside.trainer.hooks import Hooks
from trackside.trainer.progress import ProgressBar
from trackside.trainer.snapshot import validation_loss
from trackside.trainer.state import Carry
from trackside.trainer.step import SKIPPED

LOGGER = logging.getLogger(__name__)

# How long the log row of a completed step may wait for others to be written with.
MAX_UNWRITTEN_ROWS = 16
MAX_ROW_DELAY_S = 0.02


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
    max_inflight_steps: int = 2
    log_every_n_steps: int = -1
    check_val_every_n_steps: int = -1
    check_val_every_n_epoch: int = -1
    clock: Clock = SYSTEM_CLOCK
    status: str = ""
    """Why training stopped before its goal; empty while it goes on."""
    results: dict[str, dict[str, float]] = field(default_factory=dict)
    train_metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last epoch, or of the current one up to the last validation."""

    def __post_init__(self) -> None:
        self._window: deque[CallRecord] = deque()
        self._unwritten: list[CallRecord] = []
        self._compiles: CompileCounter = compile_counter()
        self._is_first_call = True
        self._opened_at_step = -1
        self._read_row = RowReader(self.layout)
        self._wants_steps = self.hooks.wants_steps
        self._log_plan = Every(self.log_every_n_steps, "log_every_n_steps")
        self._val_plan = Every(self.check_val_every_n_steps, "check_val_every_n_steps")
        self._all_plans = [self._val_plan, At(self.goal.last_step), *self.hooks.plans]
        self.position.place_in_epochs(self.goal.steps_per_epoch)
        if self.position.vector is None:
            self.position.vector = self.fresh_vector

    def run(self) -> None:
        """Train until the goal is reached or something stops it."""
        time = self.position.time
        time.start(self.clock.now())
        self.logger.events.write(
            "leg", leg=time.leg, step=self.position.step, epoch=self.position.epoch, train_time_s=time.earlier_s
        )
        self.hooks.call("on_training_start")
        while not self.status and not self.goal.is_reached(self.position):
            self._start_epoch()
            self._train_epoch()
            if self.status == "interrupted":  # the epoch is not over: it goes on when training does
                self._settle()
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
        goes_on = position.loader is self.loader and position.batches is not None
        if not goes_on or (is_new and not self.goal.loader_goes_on):
            self._open_loader()
        if position.is_restored:
            self._place_loader(is_new)
        elapsed_s = position.time.epoch_s(self.clock.now())
        self.logger.start_epoch(position.epoch, position.step, "train", elapsed_s)
        self.bar.start_epoch(position.epoch)
        self.hooks.call("on_training_epoch_start", position.epoch)

    def _open_loader(self) -> None:
        position = self.position
        position.loader = self.loader
        position.batches = open_loader(self.loader, "train_loader")
        self._opened_at_step = position.step
        position.guard = BufferGuard(self.loader, self.max_inflight_steps)

    def _place_loader(self, is_new_epoch: bool) -> None:
        """Set a loader to where a restored training stands: by its own position, or by passing over batches."""
        position = self.position
        position.is_restored = False
        goes_on = self.goal.loader_goes_on or position.batches is self.loader
        set_state = getattr(position.batches, "set_state", None)
        if position.loader_position is not None and callable(set_state):
            if goes_on or not is_new_epoch:
                set_state(position.loader_position)
                self._opened_at_step = -1
            return
        num_passed = position.step if goes_on else position.step - position.epoch_start_step
        self._opened_at_step = -1 if num_passed else self._opened_at_step
        for _ in range(num_passed):
            assert position.batches is not None
            if next(position.batches, None) is None:
                self._open_loader()
                next(position.batches)

    def _train_epoch(self) -> None:
        position, epoch_end = self.position, self.goal.epoch_end(self.position)
        while position.step < epoch_end and not self.status:
            boundary = min(epoch_end, next_boundary(self._all_plans, position.step))
            step_before = position.step
            is_exhausted = not self._run_until(boundary)
            if position.step > step_before:
                self._at_boundary()
            if is_exhausted and not self._continue_loader():
                break

    def _run_until(self, boundary: float) -> bool:
        """Train up to a boundary.

        This is the hot loop: whatever is added here is paid for at every step.

        Returns:
            False if the loader ran out of batches before.
        """
        position, window, now = self.position, self._window, self.clock.now
        guard, batches, call, place = position.guard, position.batches, self.call, self.placement.place
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
            batch = place(batch)
            if len(window) >= self.max_inflight_steps:
                np.asarray(window[0].report)  # the fastest way to wait: JAX keeps the copy for the next reader
            num_compiles, called_s = self._compiles.num_events, now()
            try:
                position.carry, position.vector = call(position.carry, position.vector, batch)
            except Exception:
                self.placement.check_train_batch(batch)  # most calls that fail were given a batch that cannot work
                raise
            dispatched_s = now()
            if self._compiles.num_events != num_compiles:
                self._write_rows()  # their time is theirs, whatever is left out from here on
                self.logger.exclude_time(dispatched_s - called_s)
            first_step = position.step + 1
            position.step += num_steps
            record = CallRecord(first_step, num_steps, position.epoch, started_s, dispatched_s, position.vector, batch)
            window.append(record)
            if position.step == next_log_step:  # its row is written when it has completed; the next starts from zero
                record.is_logged = True
                position.vector = self.fresh_vector
                next_log_step = self._log_plan.next_boundary(position.step)
            if len(window) > self.max_inflight_steps:  # completed: heard while the device is busy with the next
                self._retire(window.popleft())
            if guard.on_probation:
                self._retire_all()
        return True

    def _check_first(self, batch: Any) -> None:
        self._is_first_call = False
        self.placement.check_train_batch(batch)

    def _at_boundary(self) -> None:
        position = self.position
        is_planned = any(plan.is_due(position.step) for plan in self.hooks.plans)
        if is_planned and self._settle():
            self.hooks.call_boundary(position.epoch, position.step)
        is_validated = self._val_plan.is_due(position.step) and not self._validates_after_epoch()
        if is_validated and self._settle():
            self._validate(f"val_step_{position.step}")
        if (is_planned or is_validated) and self.status != "nan" and position.step < self.goal.epoch_end(position):
            self.hooks.call("on_settled", position.epoch, position.step)

    def _validates_after_epoch(self) -> bool:
        """Whether the validation after this epoch comes at this very step and will serve for both."""
        position = self.position
        return position.step >= self.goal.epoch_end(position) and self._is_epoch_validated()

    def _is_epoch_validated(self) -> bool:
        return self.check_val_every_n_epoch > 0 and self.position.epoch % self.check_val_every_n_epoch == 0

    def _continue_loader(self) -> bool:
        """Start the loader again where an epoch is longer than one pass over it."""
        position = self.position
        if position.step == self._opened_at_step:
            raise DataError(
                f"train_loader: gave no batch at step {position.step + 1} in epoch {position.epoch}. An iterator can "
                "be gone through only once: pass a loader that starts anew each time, or fewer epochs"
            )
        if not self.goal.loader_goes_on:
            return False
        self._open_loader()
        return True

    def _retire(self, record: CallRecord) -> None:
        """Do what was waiting for a call, which is waited for if need be."""
        report = np.asarray(record.report)
        if report[0] and not self.status:
            self._stop_at_non_finite(record, report)
        record.completed_s = self.clock.now()
        if record.is_logged:
            record.batch = None
            self._unwritten.append(record)
            if (
                len(self._unwritten) >= MAX_UNWRITTEN_ROWS
                or record.completed_s - self._unwritten[0].completed_s > MAX_ROW_DELAY_S
            ):
                self._write_rows()
        if self._wants_steps:
            step_metrics = self._read_row.last_step(report)
            self.hooks.call("on_training_step", step_metrics, record.epoch, record.last_step)
        if record.dispatched_s >= self.bar.next_refresh_s:
            self.bar.show(record.last_step, self._read_row.last_step(report), self.clock.now())

    def _retire_all(self) -> None:
        while self._window:
            self._retire(self._window.popleft())
        self._write_rows()

    def _write_rows(self) -> None:
        """Write the log rows of completed calls.

        Several at once cost a third of what they cost one by one between two steps, when each finds the caches cold.
        """
        for record in self._unwritten:
            report = np.asarray(record.report)
            self._totals_of_epoch().add(report)
            self._log_row(record.last_step, record.completed_s, report)
        self._unwritten.clear()

    def _settle(self) -> bool:
        """Wait for all steps in flight and take their metrics to the host, so that the totals are complete.

        Returns:
            Whether all of them were finite, so that the state may be validated and saved.
        """
        self._retire_all()
        position = self.position
        if position.vector is not self.fresh_vector:
            vector = np.asarray(position.vector)
            self._totals_of_epoch().add(vector)
            if position.interval is None:
                position.interval = MetricTotals(self.layout)
            position.interval.add(vector)
            position.vector = self.fresh_vector
        return self.status != "nan"

    def _totals_of_epoch(self) -> MetricTotals:
        if self.position.epoch_totals is None:
            self.position.epoch_totals = MetricTotals(self.layout)
        return self.position.epoch_totals

    def _log_row(self, step: int, now_s: float, vector: np.ndarray) -> None:
        """Log the steps since the last row: what was settled before, and a vector on top."""
        settled, self.position.interval = self.position.interval, None
        if settled is not None:
            settled.add(vector)
        row = self._read_row(vector) if settled is None else settled.compute()
        self.logger.log_row(row, step, now_s)

    def _stop_at_non_finite(self, record: CallRecord, report: np.ndarray) -> None:
        self.request_stop("nan")
        values = self._read_row.last_step(report)
        shown = {name: value for name, value in values.items() if name == "loss" or not math.isfinite(value)}
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
        totals = position.epoch_totals
        metrics: dict[str, Any] = totals.compute() if totals is not None else {}
        if totals is not None:
            self._report_skipped(totals)
        metrics["train_time"] = position.time.total_s(self.clock.now())
        self.hooks.call("on_training_epoch_end", metrics, position.epoch)
        self.train_metrics = self.logger.end_epoch(metrics, position.step)
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
        position, now_s = self.position, self.clock.now()
        position.time.stop(now_s)
        self.logger.events.write(
            "leg_end",
            leg=position.time.leg,
            step=position.step,
            epoch=position.epoch,
            train_time_s=position.time.earlier_s,
        )
