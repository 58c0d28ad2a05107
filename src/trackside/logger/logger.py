"""The logger: turns metrics into rows, and rows into the event file and the tools."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import numpy as np

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.config import ConfigDict
from trackside.errors import ConfigError, MetricError, TracksideError
from trackside.events import EventWriter, NullEventWriter
from trackside.logger.environment import gather_environment
from trackside.logger.fanout import ToolFanout
from trackside.logger.logger_config import LoggerConfig
from trackside.logger.media import MediaLogging
from trackside.logger.redact import redact
from trackside.logger.rows import to_floats, to_numbers_by_name
from trackside.logger.run_directory import RunDirectory, to_plain_config
from trackside.logger.step_timer import StepTimer
from trackside.logger.tool import LoggerTool

LOGGER = logging.getLogger(__name__)

Mode = Literal["default", "train", "val", "test"]
EPOCH_MODES = ("train", "val", "test")


class Logger(MediaLogging):
    """Logs metrics, images and text of a training to its event file and to tools.

    Closed by `finalize`; used again after that, it reopens by itself and appends.

    Args:
        config: Where and how often to log.
        metric_postprocess_fn: Takes a row's numbers by name and returns what to log instead. Every row passes through
            it: those of training steps, epochs and callbacks.
        clock: Where times come from.
        process_index: Which process of the run this is. The first writes the configuration and has the tools; each
            has its own event file and log file.
        opens_now: Whether the files are opened and the tools started at once, and not at the first use.

    Attributes:
        config: The config.
        log_path: The run's directory, if it has one.
        metric_postprocess_fn: The function given.
        epoch: The current epoch.
        step: The last step that was logged or that an epoch started at.
        found_nans: Whether a row since the start of the training held a NaN or an infinity.
        epoch_start_time_stack: When the epochs that are running started, innermost last.
        mode_stack: Their modes.
        events: The event file.

    Raises:
        ConfigError: `log_path` cannot be written to, or a tool needs one and there is none.
    """

    def __init__(
        self,
        config: LoggerConfig,
        metric_postprocess_fn: Callable[[dict[str, float]], dict[str, float]] | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        process_index: int = 0,
        opens_now: bool = True,
    ):
        self.config = config
        self.log_path = config.log_path
        self.metric_postprocess_fn = metric_postprocess_fn
        self.epoch = 0
        self.step = 0
        self.found_nans = False
        self.epoch_start_time_stack: list[float] = []
        self.mode_stack: list[Mode] = []
        self._epoch_stack: list[int] = []
        self._timer = StepTimer()
        self._starts_timing = True
        self._nan_names: set[str] = set()
        self._config: dict[str, Any] = {}
        self._environment: dict[str, Any] | None = None
        self._clock = clock
        self._now = clock.now
        self._process_index = process_index
        self.write_held_back: Callable[[], None] | None = None
        """Writes rows of steps that somebody holds back. Called before anything else is logged: rows come in the order
        of their steps, and W&B refuses those that do not."""
        self._is_open = False
        self.events: EventWriter | NullEventWriter = NullEventWriter()
        self._tools = ToolFanout((), self, clock)
        if opens_now:
            self._open()

    @property
    def mode(self) -> Mode:
        """The current mode: that of the innermost epoch, `default` outside of any."""
        return self.mode_stack[-1] if self.mode_stack else "default"

    @property
    def last_step(self) -> int:
        """The step of the last row of training."""
        return self._timer.last_step

    @property
    def last_step_time(self) -> float | None:
        """When the last row of training was logged, on the clock; None before any."""
        return self._timer.last_step_time

    @property
    def is_open(self) -> bool:
        """Whether the run's files are open: from the start, or the last use, to `finalize`."""
        return self._is_open

    @property
    def tools(self) -> list[LoggerTool]:
        """The tools that get what is logged."""
        return self._tools.tools

    def on_training_start(self) -> None:
        """Set up the logger for a training: no epoch is running, no NaN was found, no step was timed."""
        self._reopen()
        self._leave_epochs()
        self.found_nans = False
        self._nan_names.clear()
        self._start_timing(self.step)
        self._starts_timing = True

    def finalize(self, status: str) -> None:
        """Close the logger: its tools, the event file and the log file. Closing it again does nothing.

        Args:
            status: How the training ended: `success`, or another word for what went wrong.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._leave_epochs()
        try:
            self._tools.finalize(status)
        finally:  # also when the user loses patience
            self.events.write("status", status=status, step=self.step, epoch=self.epoch)
            self._directory.close()

    def flush(self) -> None:
        """Wait until the tools have what was logged so far. The event file always has it."""
        self._tools.flush()

    def log_config(self, config: ConfigDict | Mapping[str, Any]) -> None:
        """Log the configuration, without its secrets, to `config.json` and the tools.

        Args:
            config: A config, or a dict of configs or plain values. Several calls add up, by their top-level keys.
        """
        self._reopen()
        plain = redact(to_plain_config(config if isinstance(config, ConfigDict) else dict(config)))
        self._config.update(plain)
        self.events.write("config", config=plain)
        if self._process_index == 0:
            try:
                self._directory.write_config(self._config)
            except OSError as error:
                LOGGER.error("The configuration could not be written to %s: %s.", self.log_path, error)
        self._tools.log_config(self._config)

    def log_environment(self, extra: Mapping[str, Any]) -> None:
        """Add to what the run's environment rows tell; a reader merges them.

        Args:
            extra: Fields by name, such as `devices`; secrets are left out.
        """
        self._reopen()
        extra = redact(extra)
        self.events.write("environment", **extra)
        if self._environment is not None:
            self._environment.update(extra)

    def rewind(self, step: int) -> None:
        """Say that a training goes on from a checkpoint, so that no tool shows a step twice.

        The event file keeps every row; of those with the same step and mode, the last counts.

        Args:
            step: The step of the checkpoint.
        """
        self._reopen()
        self._tools.rewind(step)

    def start_epoch(
        self, epoch: int, step: int, mode: Literal["train", "val", "test"] = "train", elapsed_s: float = 0.0
    ) -> None:
        """Start an epoch, possibly inside another, which goes on after `end_epoch`.

        Args:
            epoch: The index of the epoch.
            step: The index of the training step.
            mode: What the epoch is for: `train`, `val` or `test`.
            elapsed_s: How long the epoch took before it was interrupted, if it was.
        """
        if mode not in EPOCH_MODES:
            raise ConfigError(f"start_epoch: mode is {mode!r}. Use one of {', '.join(map(repr, EPOCH_MODES))}.")
        self._reopen()
        self._epoch_stack.append(self.epoch)
        self.mode_stack.append(mode)
        self.epoch_start_time_stack.append(self._now() - elapsed_s)
        self.epoch = epoch
        self.step = step
        if mode == "train" and self._starts_timing:
            self._start_timing(step)

    def end_epoch(self, metrics: Any, step: int) -> dict[str, Any]:
        """End the current epoch, log its metrics, and go back to the epoch around it, if any.

        The row of a training epoch has the mode `train_epoch`, beside those of its steps.

        Args:
            metrics: The epoch's metrics: numbers by name, or metrics in any other form.
            step: The index of the training step.

        Returns:
            The metrics passed, not reset, and what was logged beside them: `epoch_time` in seconds, with everything
            that happened inside the epoch, and what `metric_postprocess_fn` added.
        """
        if not self.mode_stack:
            raise TracksideError("end_epoch() was called and no epoch is running. Call start_epoch() before it.")
        self._reopen()
        self._write_held_back()
        mode, start, outer_epoch = self.mode_stack.pop(), self.epoch_start_time_stack.pop(), self._epoch_stack.pop()
        self.step = step
        values = {**to_numbers_by_name(metrics), "epoch_time": self._now() - start}
        logged = self._log(values, step, "train_epoch" if mode == "train" else mode)
        if mode != "train":
            self.exclude_time(self._now() - start)
        if self.mode_stack:
            self.epoch = outer_epoch
        return {**logged, **metrics} if isinstance(metrics, Mapping) else logged

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

    def log_row(self, host_metrics: Mapping[str, float], step: int, now_s: float | None = None) -> None:
        """Log numbers that are on the host already, with `epoch` and `step_time`.

        `step_time` is in seconds per training step since the last row of training. Epochs of validation and test, what
        was passed to `exclude_time`, and steps while timing was paused do not count; rows within such epochs, and of
        nothing but such steps, have none.

        Args:
            host_metrics: The numbers by name.
            step: The current step.
            now_s: When the step was over, on the logger's clock, if that was before this call.
        """
        if not self._is_open:
            self._reopen()
        self.step = step
        mode = self.mode
        row = {**host_metrics, "epoch": self.epoch}
        if mode == "train" or mode == "default":
            now = self._now() if now_s is None else now_s
            seconds = self._timer.lap(step, now)
            if seconds is not None:
                row["step_time"] = seconds
        self._log(row, step, mode)

    def exclude_time(self, seconds: float) -> None:
        """Leave `seconds` that just passed out of `step_time`, as for compilation or a checkpoint.

        Args:
            seconds: How long it took. Time within an epoch of validation or test is left out anyway.
        """
        if set(self.mode_stack) <= {"train"}:
            self._timer.exclude(seconds)

    def pause_timing(self, step: int) -> None:
        """Leave the steps from now on out of `step_time`, as those that a capture slows down.

        Args:
            step: The last step that was not disturbed.
        """
        self._timer.pause(step, self._now())

    def resume_timing(self, step: int) -> None:
        """Count again.

        Args:
            step: The last step that was disturbed.
        """
        self._timer.resume(step, self._now())

    def log_host_metrics(self, host_metrics: Mapping[str, Any], step: int, mode: str | None = None) -> None:
        """Log numbers, as callbacks do.

        Args:
            host_metrics: Numbers by name; scalars of numpy and JAX are converted.
            step: The current step.
            mode: What to log them under; None for the current mode.
        """
        self._reopen()
        self._write_held_back()
        self._log(to_floats(host_metrics), step, self.mode if mode is None else mode)

    def _write_held_back(self) -> None:
        if self.write_held_back is not None:
            self.write_held_back()

    def _log(self, values: dict[str, float], step: int, mode: str) -> dict[str, float]:
        if self.metric_postprocess_fn is not None:
            values = self._postprocess(values, step, mode)
        # One sum finds out whether any value is not finite.
        if not math.isfinite(sum(values.values())):
            self._check_for_nans(values, step)
        self.events.write_metrics(values, step, self.epoch, mode)
        if self._tools:
            self._tools.log_metrics(values, step, self.epoch, mode)
        return values

    def _postprocess(self, values: dict[str, float], step: int, mode: str) -> dict[str, float]:
        function = cast(Callable[[dict[str, float]], dict[str, float]], self.metric_postprocess_fn)
        name = getattr(function, "__qualname__", repr(function))
        try:
            processed = function(dict(values))
        except Exception as error:
            error.add_note(f"Raised by metric_postprocess_fn={name} for the {mode!r} row of step {step}: {values}")
            raise
        if not isinstance(processed, Mapping):
            raise MetricError(f"metric_postprocess_fn={name} returned {processed!r}. Return a dict of numbers by name.")
        return to_floats(processed)

    def _check_for_nans(self, host_metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Look for NaNs and infinities: `found_nans` is set, and each metric is warned of once per training.

        Args:
            host_metrics: The metrics to check.
            step: The step that they were logged at, for the warning.
        """
        bad = {name: value for name, value in host_metrics.items() if not math.isfinite(value)}
        if not bad:
            return
        self.found_nans = True
        if new := {name: value for name, value in bad.items() if name not in self._nan_names}:
            self._nan_names.update(new)
            found = ", ".join(f"{name}={float(value)}" for name, value in new.items())
            where = "" if step is None else f" at step {step}"
            LOGGER.warning("Found values that are not finite%s: %s.", where, found)

    def _can_show(self, method: str) -> bool:
        self._reopen()
        return self._tools.can_show(method)

    def _show(self, method: str, name: str, value: np.ndarray | str, step: int, mode: str | None) -> None:
        self._reopen()
        self._write_held_back()
        self._tools.show(method, name, value, step, self.mode if mode is None else mode)

    def _write_text(self, name: str, value: str, step: int, mode: str | None) -> None:
        mode = self.mode if mode is None else mode
        self.events.write("text", name=name, text=value, step=step, epoch=self.epoch, mode=mode)

    def _open(self) -> None:
        config = self.config
        self._directory = RunDirectory(self.log_path, config.cmd_logging_name, self._process_index, self._clock)
        self.events = self._directory.events
        try:
            self._tools = ToolFanout(config.log_tools if self._process_index == 0 else (), self, self._clock)
        except BaseException:
            self._directory.close()
            raise
        self._is_open = True
        if self.log_path is not None:
            if self._environment is None:
                self._environment = gather_environment(self._process_index)
                if self._directory.held_a_run:
                    LOGGER.warning("%s holds a run already; this one is appended to its files", self.log_path)
            self.events.write("environment", **self._environment)

    def _reopen(self) -> None:
        if not self._is_open:
            self._open()
            if self._config:
                self._tools.log_config(self._config)

    def _leave_epochs(self) -> None:
        self.mode_stack.clear()
        self.epoch_start_time_stack.clear()
        self._epoch_stack.clear()

    def _start_timing(self, step: int) -> None:
        self._timer.start(step, self._now())
        self._starts_timing = False
