"""What is done when a call of the loop has completed: finite check, log rows, hooks, step times, progress bar."""

import logging
import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from trackside.callbacks import CallbackList
from trackside.logger import Logger
from trackside.metrics.layout import MEAN_AS_SUM, NOT_FINITE
from trackside.profiling.call_record import CallRecord
from trackside.schedule import Every
from trackside.trainer.fused_steps import NOT_MADE, num_steps_made
from trackside.trainer.loop_plan import Instruments
from trackside.trainer.progress import Progress

LOGGER = logging.getLogger(__name__)

_MEAN_AS_SUM = (
    "metrics['loss']: `value` is the returned loss itself, and `count` is more than 1. A `value` is a sum over `count` "
    "items, so the loss is logged as %g, smaller than the returned one. If you return a mean, give "
    "{'value': loss * n, 'count': n}, or leave the metric out"
)


class CompletedCalls:
    """Hears what calls report when they have completed, in their order.

    Args:
        progress: The training.
        log_plan: Which steps have a log row.
        on_step: Who hears of every step.
        logger: Gets the rows.
        instruments: What watches the loop.
        is_fused: Whether calls may make several steps.
    """

    def __init__(
        self,
        progress: Progress,
        log_plan: Every,
        on_step: CallbackList,
        logger: Logger,
        instruments: Instruments,
        is_fused: bool,
    ):
        self.bad_step: int | None = None
        """The first step that was not finite."""
        self._progress = progress
        self._log_plan = log_plan
        self._on_step = on_step
        self._hears_steps = len(on_step) > 0
        self._is_fused = is_fused
        self._logger = logger
        self._meter = instruments.meter
        self._ends = instruments.meter.ends
        self._measurements = instruments.measurements
        self._bar = instruments.bar
        self._stop = instruments.stop
        self._clock = instruments.clock
        self._warned_of_mean = False

    def retire_first(self, window: deque[CallRecord], number: int) -> None:
        """Do what was waiting for the first calls in flight, all of which have completed.

        Several at once take a third of the time that they take one by one between two calls, with cold caches.

        Args:
            window: The calls in flight, which these are taken out of.
            number: How many.
        """
        now_s = self._clock.now()
        if number == 1 or self._is_fused or self._hears_steps or self._has_flags(window, number):
            for _ in range(number):
                record = window.popleft()
                record.found_s = min(record.found_s, now_s)
                self.retire(record, window)
            return
        records = [window.popleft() for _ in range(number)]
        last = records[-1]
        for record in records:
            record.batch, record.found_s = None, min(record.found_s, now_s)
        self._ends.conclude(records, window)
        self._meter.step_times.add_calls(records, self._measurements.capture_state != "none")
        if logged := [record for record in records if record.is_logged]:
            self._log(logged)
        if now_s >= self._bar.next_refresh_s:
            self._bar.show(last.last_step, self._progress.totals.last_step(np.asarray(last.report)), now_s)

    def _has_flags(self, window: deque[CallRecord], number: int) -> bool:
        """Whether one of the first calls has raised a flag.

        Flags stay up until the metrics begin again, after a log row, so that not every report has to be read.
        """
        last = number - 1
        read = (record for index in range(number) if (record := window[index]).is_logged or index == last)
        return any(np.asarray(record.report)[0] for record in read)

    def retire(self, record: CallRecord, window: Sequence[CallRecord]) -> None:
        """Do what was waiting for a call, which is waited for if need be.

        Args:
            record: The call.
            window: Those in flight after it.
        """
        report = np.asarray(record.report)
        record.batch = None
        if report.ndim > 1:
            self._retire_fused(record, report, window)
            return
        if report[0]:
            self._heed_flags(record.last_step, report)
        self._ends.conclude((record,), window)
        self._meter.step_times.add_calls((record,), self._measurements.capture_state != "none")
        totals = self._progress.totals
        if record.is_logged:
            self._log([record])
        if self._hears_steps:
            self._on_step.call("on_training_step", totals.last_step(report), record.epoch, record.last_step)
        if record.dispatched_s >= self._bar.next_refresh_s:
            self._bar.show(record.last_step, totals.last_step(report), self._clock.now())

    def _log(self, records: Sequence[CallRecord]) -> None:
        """Hold the rows of calls of one step."""
        vectors = np.array([np.asarray(record.report) for record in records])
        steps = [record.last_step for record in records]
        self._logger.hold_rows(
            self._progress.totals.take_rows, vectors, steps, [record.completed_s for record in records]
        )
        self._meter.log_if_due(steps[-1])

    def _retire_fused(self, record: CallRecord, report: np.ndarray, window: Sequence[CallRecord]) -> None:
        """The same for a call of several steps: what each of them has to say, as if it had been made by itself."""
        is_flagged = report[:, 0].any() or report[record.num_steps - 1, 1] == NOT_MADE
        if is_flagged:
            record.num_steps = self._count_made(record, report)
        num_steps, totals = record.num_steps, self._progress.totals
        if not num_steps:
            return
        before_s, last_s = self._ends.last_s, self._meter.step_times.last_s
        self._ends.conclude((record,), window)
        is_captured = self._measurements.capture_state != "none"
        self._meter.step_times.add_calls((record,), is_captured)
        # From call to call, so that what it takes to start one is shared by its steps.
        began_s = max(record.dispatched_s if record.is_disturbed else record.began_s, before_s)
        since_s = began_s if last_s is None or is_captured or record.is_disturbed else last_s
        each_s = max(record.completed_s - since_s, 0.0) / num_steps
        steps = self._log_plan.between(record.first_step, record.last_step) if record.is_logged else range(0)
        if is_flagged:
            self._hear_flagged(record, report, steps, each_s)
        else:
            self._hear_steps(record, report, steps, each_s, range(record.first_step, record.last_step + 1))
        if record.is_logged:
            self._meter.log_if_due(record.last_step)
        if record.dispatched_s >= self._bar.next_refresh_s:
            self._bar.show(record.last_step, totals.last_step(report[num_steps - 1]), self._clock.now())

    def _hear_flagged(self, record: CallRecord, report: np.ndarray, rows: range, each_s: float) -> None:
        """Hear of the steps of a call of which some have raised flags; only the last may be one that is not finite."""
        first, last = record.first_step, record.last_step
        num_before = len(rows) - (last in rows)
        self._hear_steps(record, report, rows[:num_before], each_s, range(first, last))
        for index in np.flatnonzero(report[: record.num_steps, 0]):
            self._heed_flags(first + int(index), report[index])
        self._hear_steps(record, report, rows[num_before:], each_s, range(last, last + 1))

    def _hear_steps(self, record: CallRecord, report: np.ndarray, rows: range, each_s: float, steps: range) -> None:
        """Hold rows and call hooks, in the order of steps: hooks may write rows, too.

        Args:
            record: The call.
            report: The metrics after each of its steps.
            rows: The steps that have a row.
            each_s: How long a step took.
            steps: The steps to hear of.
        """
        if not self._hears_steps:
            if rows:
                self._hold_fused(record, report, rows, each_s)
            return
        heard, num_held = steps.start, 0
        try:
            for step in rows:
                heard = self._tell_steps(record, report, heard, step)
                self._hold_fused(record, report, rows[num_held : num_held + 1], each_s)
                num_held += 1
            self._tell_steps(record, report, heard, steps.stop)
        except BaseException:  # what was computed is logged, whatever a hook says to it
            if num_held < len(rows):
                self._hold_fused(record, report, rows[num_held:], each_s)
            raise

    def _hold_fused(self, record: CallRecord, report: np.ndarray, steps: range, each_s: float) -> None:
        """Hold the rows of some steps of a call.

        Args:
            record: The call.
            report: The metrics after each of its steps.
            steps: The steps.
            each_s: How long one took.
        """
        first, completed_s, last_step = record.first_step, record.completed_s, record.last_step
        vectors = report[steps[0] - first : steps[-1] - first + 1 : steps.step]
        ended_s = [completed_s - (last_step - step) * each_s for step in steps]
        self._logger.hold_rows(self._progress.totals.take_rows, vectors, steps, ended_s)

    def _tell_steps(self, record: CallRecord, report: np.ndarray, first: int, end: int) -> int:
        """Call the hooks for the steps of a call from `first` to the one before `end`, and give `end`."""
        for step in range(first, end):
            values = self._progress.totals.last_step(report[step - record.first_step])
            self._on_step.call("on_training_step", values, record.epoch, step)
        return end

    def _count_made(self, record: CallRecord, report: np.ndarray) -> int:
        """Count the steps that a call made, none after one that was not finite, and take the others back."""
        num_made, num_planned = num_steps_made(report), record.num_steps
        if num_made < num_planned:
            self._meter.ledger.account()
            self._meter.ledger.num_steps -= num_planned - num_made
            self._progress.cursor.step -= num_planned - num_made
        return num_made

    def _heed_flags(self, step: int, report: np.ndarray) -> None:
        if report[0] & NOT_FINITE and not self._stop.status:
            self._stop_at_non_finite(step, report)
        if report[0] & MEAN_AS_SUM and not self._warned_of_mean:
            self._warned_of_mean = True
            LOGGER.warning(_MEAN_AS_SUM, self._progress.totals.last_step(report)["loss"])

    def _stop_at_non_finite(self, step: int, report: np.ndarray) -> None:
        self._stop.ask("nan")
        values = self._progress.totals.last_step(report)
        shown = {name: value for name, value in values.items() if name == "loss" or not math.isfinite(value)}
        self.bad_step = step
        LOGGER.error(
            "step %d: the loss or the gradient norm is not finite (%s); training stops",
            step,
            ", ".join(f"{name}={value:g}" for name, value in shown.items()),
        )
        self._logger.report_non_finite(shown, step)
