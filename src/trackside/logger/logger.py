"""The logger: turns metrics into rows of the run log."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.config import ConfigDict
from trackside.errors import MetricError
from trackside.logger.held_rows import HeldRows, ReadRows, RowQueue, to_columns
from trackside.logger.images import render_figure, to_image, to_numbers
from trackside.logger.logger_config import LoggerConfig
from trackside.logger.non_finite_values import NonFiniteValues
from trackside.logger.numbers import to_floats, to_numbers_by_name
from trackside.logger.open_epochs import OpenEpochs, check_mode
from trackside.logger.postprocessing import MetricPostprocessFn, postprocess
from trackside.logger.redact import redact
from trackside.logger.row_step_time import RowStepTime
from trackside.logger.run_directory import fill_in_time, to_plain_config
from trackside.logger.run_log import RunLog
from trackside.logger.tool import LoggerTool
from trackside.logger.tool_fanout import build_tools
from trackside.metric_columns import MetricColumns
from trackside.profiling.ledger import Ledger
from trackside.text import a_type

LOGGER = logging.getLogger(__name__)
"""Python's logger for messages about logging, such as a tool that fails."""


class Logger:
    """Logs metrics, images and text of a training to its run log.

    Closed by `finalize`; used again after that, it reopens by itself and appends.

    Args:
        config: Where and how often to log.
        metric_postprocess_fn: Takes a row's numbers by name and returns what to log instead. Rows of training steps,
            epochs and evaluations pass through it; rows about the run itself (`time`, `memory`, `profile`) do not.
        clock: Where times come from.
        process_index: Which process of the run this is. The first writes the configuration and has the tools; each
            has its own event file and log file.
        ledger: Where the time for writing rows of steps, and for closing the tools, is booked.

    Attributes:
        config: The config.
        log_path: The run's directory, if it has one.
        metric_postprocess_fn: The function given.
        epoch: The current epoch.
        step: The last step that was logged or that an epoch started at.
        run_log: Where the rows go.

    Raises:
        ConfigError: `log_path` cannot be written to, or a tool needs one and there is none.
    """

    def __init__(
        self,
        config: LoggerConfig,
        metric_postprocess_fn: MetricPostprocessFn | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        process_index: int = 0,
        ledger: Ledger | None = None,
    ):
        self.config = config
        self.log_path = None if config.log_path is None else fill_in_time(config.log_path, clock.timestamp())
        self.metric_postprocess_fn = metric_postprocess_fn
        self.epoch = 0
        self.step = 0
        self._now = clock.now
        self._ledger = Ledger(clock) if ledger is None else ledger
        self._epochs = OpenEpochs()
        self._held = RowQueue(self._write_held, self._ledger)
        self._interval = RowStepTime()
        self._non_finite = NonFiniteValues()
        tools = config.log_tools if process_index == 0 else ()
        self.run_log = RunLog(
            self.log_path,
            config.cmd_logging_name,
            lambda: build_tools(tools, self, clock, self._ledger),
            process_index,
            clock,
        )
        self.run_log.open()

    @property
    def mode(self) -> str:
        """The current mode: that of the innermost epoch, `default` outside of any."""
        return self._epochs.mode

    @property
    def mode_stack(self) -> list[str]:
        """The modes of the epochs that are running, innermost last."""
        return self._epochs.modes

    @property
    def epoch_start_time_stack(self) -> list[float]:
        """When these epochs started, on the clock."""
        return self._epochs.started_s

    @property
    def found_nans(self) -> bool:
        """Whether a row since the start of the training held a NaN or an infinity."""
        return self._non_finite.found

    @property
    def last_step(self) -> int:
        """The step of the last row of training."""
        return self._interval.last_step

    @property
    def last_step_time(self) -> float | None:
        """When the last row of training was logged, on the clock; None before any."""
        return self._interval.last_step_time

    @property
    def is_open(self) -> bool:
        """Whether the run's files are open: from the start, or the last use, to `finalize`."""
        return self.run_log.is_open

    @property
    def tools(self) -> list[LoggerTool]:
        """The tools that get what is logged."""
        return self.run_log.tools.tools

    def on_training_start(self) -> None:
        """Set up the logger for a training: no epoch is running, no NaN was found, no step was timed."""
        self.run_log.attach()
        self.run_log.open()
        self._epochs.clear()
        self._non_finite.forget()
        self._interval.start_training(self.step, self._now())

    def finalize(self, status: str, step: int | None = None) -> None:
        """Close the logger: its tools, the event file and the log file. Closing it again does nothing.

        Args:
            status: How the training ended: `success`, or another word for what went wrong; empty if it never began.
            step: The step that it ended at; the last that was logged if left out.
        """
        self.write_held_rows()
        self._epochs.clear()
        self.step = self.step if step is None else step
        self.run_log.close(status, self.step, self.epoch)

    def close_tools(self, status: str) -> None:
        """Close the tools, which may take their time to write what they have. The files stay open until `finalize`.

        Args:
            status: As for `finalize`.
        """
        self.write_held_rows()
        self.run_log.close_tools(status)

    def flush(self) -> None:
        """Wait until the tools have what was logged so far. The event file always has it."""
        self.write_held_rows()
        self.run_log.flush()

    def log_config(self, config: ConfigDict | Mapping[str, Any]) -> None:
        """Log the configuration, without its secrets, to `config.json` and the tools.

        Args:
            config: A config, or a dict of configs or plain values. Several calls add up, by their top-level keys.
        """
        self.run_log.open()
        self.run_log.write_config(redact(to_plain_config(config if isinstance(config, ConfigDict) else dict(config))))

    def log_environment(self, extra: Mapping[str, Any]) -> None:
        """Add to what the run's environment rows say; a reader merges them.

        Args:
            extra: Fields by name, such as `devices`; secrets are left out.
        """
        self.run_log.open()
        self.run_log.write_environment(extra)

    def rewind(self, step: int) -> None:
        """Say that a training continues from a checkpoint, so that no tool shows a step twice.

        The event file keeps every row; of those with the same step and mode, the last counts.

        Args:
            step: The step of the checkpoint; -1 for a training that begins again, since it was killed before its first.
        """
        self.run_log.open()
        self.run_log.tools.rewind(step)

    # --- epochs -------------------------------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, step: int, mode: str = "train", elapsed_s: float = 0.0) -> None:
        """Start an epoch, possibly inside another, which continues after `end_epoch`.

        Args:
            epoch: The index of the epoch.
            step: The index of the training step.
            mode: What the epoch is for: `train`, `val`, `test`, or any other name.
            elapsed_s: How long the epoch took before it was interrupted, if it was.
        """
        check_mode(mode)
        self.run_log.open()
        self.write_held_rows()  # they belong to the epoch around it
        self._epochs.start(mode, self._now() - elapsed_s, self.epoch)
        self.epoch = epoch
        self.step = step
        if mode == "train" and self._interval.awaits_epoch:
            self._interval.start(step, self._now())

    def complete_metrics(self, metrics: Any) -> dict[str, float]:
        """What the current epoch's row will hold: its metrics, `epoch_time`, and what `metric_postprocess_fn` adds.

        For those who look at an epoch's metrics before `end_epoch` logs them.

        Args:
            metrics: The epoch's metrics: numbers by name, or metrics in any other form.
        """
        epoch = self._epochs.innermost()
        values = {**to_numbers_by_name(metrics), "epoch_time": self._now() - epoch.started_s}
        return self._postprocess(values, self.step, epoch.row_mode)

    def preview_metrics(self, metrics: Mapping[str, float], mode: str) -> dict[str, float]:
        """What the row of an epoch that did not take place would hold, such as that of a trial batch.

        Args:
            metrics: The epoch's metrics: numbers by name.
            mode: What the epoch would be for.
        """
        return self._postprocess({**metrics, "epoch_time": 0.0}, self.step, mode)

    def end_epoch(self, metrics: Any, step: int, is_complete: bool = False) -> dict[str, Any]:
        """End the current epoch, log its metrics, and return to the epoch around it, if any.

        The row of a training epoch has the mode `train_epoch`, next to those of its steps.

        Args:
            metrics: The epoch's metrics: numbers by name, or metrics in any other form.
            step: The index of the training step.
            is_complete: Whether they are what `complete_metrics` has given.

        Returns:
            The metrics passed, not reset, and what was logged in addition: `epoch_time` in seconds, with everything
            that happened inside the epoch, and what `metric_postprocess_fn` added.
        """
        self.run_log.open()
        self.write_held_rows()
        values = to_floats(metrics) if is_complete else self.complete_metrics(metrics)
        ended = self._epochs.end()
        self.step = step
        self._log(values, step, ended.row_mode)
        if ended.mode != "train":
            self.exclude_time(self._now() - ended.started_s)
        if self._epochs:
            self.epoch = ended.outer_epoch
        return {**values, **metrics} if isinstance(metrics, Mapping) else values

    # --- steps --------------------------------------------------------------------------------------------------------

    def log_step(self, metrics: Any, step: int) -> Any:
        """Log the metrics of the steps since the last row, if a row is due at this step.

        Args:
            metrics: Accumulated metrics, or those of one step as a loss function returns them.
            step: The current step.

        Returns:
            The metrics reset if they were logged, else unchanged.
        """
        if step % self.config.log_every_n_steps != 0:
            self.step = step
            return metrics
        from trackside.metrics import reset_metrics, to_host_metrics

        self.log_row(to_host_metrics(metrics), step)
        return reset_metrics(metrics)

    def log_row(self, host_metrics: Mapping[str, float], step: int) -> None:
        """Log numbers that are on the host already, with `epoch` and `step_time`.

        `step_time` is in seconds per training step since the last row of training. Epochs of validation and test, what
        was passed to `exclude_time`, and steps while timing was paused do not count; rows within such epochs, and of
        nothing but such steps, have none.

        Args:
            host_metrics: The numbers by name.
            step: The current step.
        """
        if not self.run_log.is_open:
            self.run_log.open()
        self.step = step
        mode = self.mode
        row = {**host_metrics, "epoch": self.epoch}
        if mode == "train" or mode == "default":
            seconds = self._interval.lap(step, self._now())
            if seconds is not None:
                row["step_time"] = seconds
        self._log(self._postprocess(row, step, mode), step, mode)

    def log_rows(self, rows: Iterable[tuple[dict[str, float], int, int, float]]) -> None:
        """Log the rows of several training steps at once, as `log_row` does one.

        Args:
            rows: The numbers by name, the step and the epoch of each, and when it was over on the logger's clock.
        """
        if not self.run_log.is_open:
            self.run_log.open()
        mode, lap, check, written = self.mode, self._interval.lap, self._non_finite.check, []
        changes = self.metric_postprocess_fn is not None
        for values, step, epoch, now_s in rows:
            values.setdefault("epoch", epoch)
            seconds = lap(step, now_s)
            if seconds is not None:
                values["step_time"] = seconds
            check(values, step)
            written.append((self._postprocess(values, step, mode) if changes else values, step, epoch))
        if written:
            self.step = written[-1][1]
        self.run_log.write_metrics_rows(written, mode)

    def log_columns(self, columns: MetricColumns, ended_s: Sequence[float]) -> None:
        """Log the rows of many training steps at once, as `log_rows` does.

        Args:
            columns: The rows, in the order of their steps.
            ended_s: When each step was over, on the logger's clock.
        """
        is_plain = self.metric_postprocess_fn is None and "epoch" not in columns.names
        seconds = None
        if is_plain and math.isfinite(sum(columns.flat)):
            seconds = self._interval.laps(columns.steps, ended_s)
        if seconds is None:
            self.log_rows((*row, end_s) for row, end_s in zip(columns.rows(), ended_s, strict=True))
            return
        if not self.run_log.is_open:
            self.run_log.open()
        self.step = columns.steps[-1]
        columns = columns.extended(("epoch", "step_time"), columns.epochs, seconds)
        self.run_log.write_metrics_columns(columns, self.mode)

    def hold_rows(
        self, read: ReadRows, vectors: np.ndarray, steps: Sequence[int], completed_s: Sequence[float]
    ) -> None:
        """Log rows of completed steps now, or in a moment together with others.

        Whatever else is logged comes after them: rows come in the order of their steps, and W&B refuses others.

        Args:
            read: Reads the rows of this training.
            vectors: Their packed metrics, one after the other.
            steps: Their steps.
            completed_s: When each completed, on the logger's clock.
        """
        self._held.hold(HeldRows(read, vectors, steps, completed_s))

    def write_held_rows(self) -> None:
        """Write the rows that wait to be written together."""
        self._held.write()

    def _write_held(self, held: Sequence[HeldRows]) -> None:
        for columns, completed_s in to_columns(held, self.epoch):
            self.log_columns(columns, completed_s)

    def exclude_time(self, seconds: float) -> None:
        """Leave `seconds` that just passed out of `step_time`, as for compilation or a checkpoint.

        Args:
            seconds: How long it took. Time within an epoch of validation or test is left out anyway.
        """
        if all(mode == "train" for mode in self._epochs.modes):
            self._interval.exclude(seconds)

    def exclude_span(self, began_s: float, until_s: float) -> None:
        """Leave a time out of `step_time`, for loops whose rows are logged some steps later.

        Args:
            began_s: When it began, on the logger's clock.
            until_s: When it ended.
        """
        self._interval.exclude_span(began_s, until_s)

    def between_steps(self) -> AbstractContextManager[None]:
        """Leave the time of a block out of `step_time`, as that of callbacks, checkpoints and validations."""
        return self._interval.left_out(self._now)

    def pause_timing(self, step: int) -> None:
        """Leave the steps from now on out of `step_time`, as those that a capture slows down.

        Args:
            step: The last step that was not disturbed.
        """
        self._interval.pause(step, self._now())

    def resume_timing(self, step: int) -> None:
        """Count again.

        Args:
            step: The last step that was disturbed.
        """
        self._interval.resume(step, self._now())

    def log_host_metrics(self, host_metrics: Mapping[str, Any], step: int, mode: str | None = None) -> None:
        """Log numbers, as callbacks do.

        Args:
            host_metrics: Numbers by name; scalars of numpy and JAX are converted.
            step: The current step.
            mode: What to log them under; None for the current mode.
        """
        self.run_log.open()
        self.write_held_rows()
        mode = self.mode if mode is None else mode
        self._log(self._postprocess(to_floats(host_metrics), step, mode), step, mode)

    def report_non_finite(self, values: Mapping[str, float], step: int) -> None:
        """Record that a step was not finite.

        Args:
            values: The values that show it, by name.
            step: The step.
        """
        self.write_held_rows()  # those of earlier steps come first
        self._non_finite.found = True
        self.run_log.write("non_finite", step=step, values={name: str(value) for name, value in values.items()})

    # --- images, text, histograms and figures -------------------------------------------------------------------------

    def log_image(self, name: str, value: Any, step: int, mode: str | None = None) -> None:
        """Log an image or a batch of them to the tools that show images.

        Args:
            name: What to call it.
            value: numpy or JAX array, HxW, HxWxC or NxHxWxC; uint8, or float in [0, 1].
            step: The current step.
            mode: What to log it under; None for the current mode.
        """
        self._show("log_image", name, to_image(name, value), step, mode)

    def log_text(self, name: str, value: str, step: int, mode: str | None = None) -> None:
        """Log text to the event file and the tools that show text; arguments as for `log_image`."""
        if not isinstance(value, str):
            raise MetricError(f"log_text: {name!r} is {a_type(value)}. Pass a string.")
        self._show("log_text", name, value, step, mode)
        mode = self.mode if mode is None else mode
        self.run_log.write("text", name=name, text=value, step=step, epoch=self.epoch, mode=mode)

    def log_histogram(self, name: str, value: Any, step: int, mode: str | None = None) -> None:
        """Log the distribution of an array's finite numbers; other arguments as for `log_image`."""
        self._show("log_histogram", name, to_numbers(name, value), step, mode)

    def log_figure(self, name: str, value: Any, step: int, mode: str | None = None) -> None:
        """Log a matplotlib figure as it looks now; other arguments as for `log_image`."""
        self.run_log.open()
        if self.run_log.tools.can_show("log_figure"):  # drawing takes long
            self._show("log_figure", name, render_figure(name, value), step, mode)

    def _show(self, method: str, name: str, value: np.ndarray | str, step: int, mode: str | None) -> None:
        self.run_log.open()
        self.write_held_rows()
        self.run_log.tools.show(method, name, value, step, self.mode if mode is None else mode)

    def _log(self, values: dict[str, float], step: int, mode: str) -> None:
        self._non_finite.check(values, step)
        self.run_log.write_metrics(values, step, self.epoch, mode)

    def _postprocess(self, values: dict[str, float], step: int, mode: str) -> dict[str, float]:
        return postprocess(self.metric_postprocess_fn, values, step, mode)
