"""Profiles of training steps, by minutes (`JaxProfiler`) or by a window of steps (`JAXProfiler`).

A capture starts and ends at a boundary, where all steps before have completed and none after has begun, so it holds
exactly the steps that were asked for. It is ended before validation starts, and however training ends. What happens to
the trace after that happens in the background (see `trackside.profiling.capture`).
"""

import logging
import pathlib
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.experimental import multihost_utils

from trackside.callbacks.base import Callback, CallbackConfig
from trackside.callbacks.capture_output import log_capture
from trackside.callbacks.capture_schedule import CaptureSchedule, Periodic, StepWindow
from trackside.callbacks.capture_triggers import LookAround, OnDemand, OnSlowStep
from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import CaptureError, ConfigError
from trackside.profiling.capture import Capture, start_capture
from trackside.run_layout import CAPTURE_REQUEST_FILE_NAME
from trackside.schedule import NEVER

LOGGER = logging.getLogger(__name__)

LOOK_TOGETHER_EVERY_N_STEPS = 64
"""How often several processes agree on whether to capture."""


@dataclass
class CaptureConfig(CallbackConfig):
    """What both profilers can be told beside when to start."""

    on_demand: bool = field(default=True, kw_only=True)
    """Capture also when `capture.now` is touched in the run's folder, or on SIGUSR2."""
    slow_step_factor: float = field(default=-1.0, kw_only=True)
    """Capture also after a step that took so many times the running median; below 0 for never."""
    slow_step_max_per_hour: int = field(default=2, kw_only=True)
    """How many captures slow steps may cause per hour."""
    max_seconds: float = field(default=60.0, kw_only=True)
    """End a capture after so long, also if it lacks steps."""
    max_megabytes: float = field(default=512.0, kw_only=True)
    """After a trace that was larger, the next ones hold fewer steps."""
    calibrate_peak: bool = field(default=False, kw_only=True)
    """Measure what the device can do, before training, where no table knows; takes a second."""

    def check_limits(self) -> None:
        """Refuse limits that cannot work."""
        name = type(self).__name__
        for limit in ("max_seconds", "max_megabytes"):
            if getattr(self, limit) <= 0:
                raise ConfigError(f"{name}.{limit}: expected a positive number, got {getattr(self, limit)}")
        if 0 <= self.slow_step_factor <= 1:
            raise ConfigError(
                f"{name}.slow_step_factor: expected more than 1, or below 0 for never; got {self.slow_step_factor}"
            )
        if self.slow_step_max_per_hour < 0:
            raise ConfigError(f"{name}.slow_step_max_per_hour: expected 0 or more, got {self.slow_step_max_per_hour}")


@dataclass
class JaxProfilerConfig(CaptureConfig):
    """Profile periodically."""

    every_n_epochs: int = -1
    """Unused in this callback."""
    every_n_steps: int = -1
    """Unused in this callback."""
    main_process_only: bool = True
    """Profile on the main process only; otherwise one profile per process is created."""
    profile_every_n_minutes: float = 60
    """Profile every so many minutes; below 0 for once only, 0 for as soon as the last one ended."""
    profile_first_step: int = 10
    """The first profile starts at the end of this step."""
    profile_n_steps: int = 5
    """How many steps a profile holds."""
    profile_log_dir: str = "tensorboard"
    """Where to, relative to the run's folder; by default where TensorBoard's scalars are."""
    trace_python: bool = field(default=False, kw_only=True)
    """Trace Python calls too, which slows Python code down about five times."""
    trace_memory: bool = field(default=False, kw_only=True)
    """Record beside each profile what fills the memory."""

    def __post_init__(self) -> None:
        self.check_limits()
        if self.profile_n_steps < 1:
            raise ConfigError(f"JaxProfilerConfig.profile_n_steps: expected 1 or more, got {self.profile_n_steps}")
        if self.profile_first_step < 0:
            raise ConfigError(
                f"JaxProfilerConfig.profile_first_step: expected 0 or more, got {self.profile_first_step}"
            )

    def create(self, trainer: Any, data_module: Any = None) -> "JaxProfiler":
        """Build the callback."""
        return JaxProfiler(self, trainer, data_module)


@dataclass
class ProfilingConfig(CaptureConfig):
    """Profile a window of steps."""

    log_dir: str = "logs/profiles"
    """Where to, relative to the working directory."""
    start_step: int = 10
    """The first step of the profile."""
    end_step: int = 20
    """The step at which it ends, which is the first that it does not hold."""
    trace_memory: bool = True
    """Record beside the profile what fills the memory."""
    trace_python: bool = False
    """Trace Python calls too, which slows Python code down about five times."""

    # By name only, so that the five above come first.
    every_n_epochs: int = field(default=-1, kw_only=True)
    every_n_steps: int = field(default=-1, kw_only=True)
    main_process_only: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        self.check_limits()
        if not 0 <= self.start_step < self.end_step or self.end_step < 2:
            raise ConfigError(
                f"ProfilingConfig.start_step={self.start_step}, end_step={self.end_step}: expected a window of steps, "
                "which are counted from 1, with end_step behind start_step"
            )

    def create(self, trainer: Any, data_module: Any = None) -> "JAXProfiler":
        """Build the callback."""
        return JAXProfiler(self, trainer, data_module)


class CaptureCallback(Callback):
    """Takes captures when its schedule or a trigger asks for one."""

    config: Any
    hears_steps = False  # boundaries do

    def __init__(self, config: Any, trainer: Any, data_module: Any, schedule: CaptureSchedule, clock: Clock):
        super().__init__(config, trainer, data_module)
        self.plan = self
        self._schedule = schedule
        self._clock = clock
        self._look_around = LookAround(clock)
        self._on_demand = OnDemand(None)
        self._on_slow_step = OnSlowStep(config.slow_step_factor, config.slow_step_max_per_hour, clock)
        self._capture: Capture | None = None
        self._finishing: list[Capture] = []
        self._stop_step: float = NEVER
        self._max_steps: float = NEVER
        self._looked = (-1, "")
        self._last_error = ""

    @property
    def log_path(self) -> pathlib.Path:
        """Where the profiles go."""
        raise NotImplementedError

    @property
    def profiler_active(self) -> bool:
        """Whether steps are being traced."""
        return self._capture is not None

    # --- when --------------------------------------------------------------------------------------------------------

    def next_boundary(self, step: int) -> float:
        """The next step at which to start, stop or look around."""
        planned = self._stop_step if self.profiler_active else self._schedule.next_start(step)
        if self._is_shared:  # all processes have to stop at the same steps
            together = (step // LOOK_TOGETHER_EVERY_N_STEPS + 1) * LOOK_TOGETHER_EVERY_N_STEPS
            return min(planned, together) if self._looks_around else planned
        return min(planned, self._look_around.next_step(step)) if self._looks_around else planned

    def is_due(self, step: int) -> bool:
        """Whether there is anything to do at the end of `step`."""
        if self.profiler_active:
            return step >= self._stop_step or self._is_over_budget
        return bool(self._asks(step)) or any(capture.is_done for capture in self._finishing)

    @property
    def _looks_around(self) -> bool:
        config = self.config
        is_asked = self._schedule.uses_clock or config.on_demand or config.slow_step_factor > 0
        return is_asked or self.profiler_active or bool(self._finishing)

    @property
    def _is_shared(self) -> bool:
        return jax.process_count() > 1 and not self.config.main_process_only

    @property
    def _is_over_budget(self) -> bool:
        return self._capture is not None and not self._is_shared and self._capture.seconds > self.config.max_seconds

    def _asks(self, step: int) -> str:
        """Why a capture is to start at the end of `step`; asked once per step, since a request is answered once."""
        if self._looked[0] != step:
            self._looked = step, self._ask_all(step)
        return self._looked[1]

    def _ask_all(self, step: int) -> str:
        if not self._is_shared:
            return self._schedule.ask(step) or self._ask_triggers(step)
        if self._schedule.next_start(step - 1) == step:
            return self._schedule.ask(step)
        if step % LOOK_TOGETHER_EVERY_N_STEPS:
            return ""
        asked = self._schedule.ask(step) or self._ask_triggers(step) if jax.process_index() == 0 else ""
        return "asked for by the main process" if multihost_utils.broadcast_one_to_all(bool(asked)) else ""

    def _ask_triggers(self, step: int) -> str:
        return self._on_demand.ask() or self._on_slow_step.ask(step, self.trainer.step_times)

    # --- hooks -------------------------------------------------------------------------------------------------------

    def on_training_start(self) -> None:
        """Begin to watch."""
        self.log_path  # noqa: B018 - says now, and not hours later, where profiles cannot go
        self._schedule.begin(self.trainer.global_step)
        if self.config.calibrate_peak:
            self.trainer.calibrate_peak()
        if self.config.on_demand and jax.process_index() == 0:
            run = self.trainer.logger.log_path
            self._on_demand = OnDemand(None if run is None else pathlib.Path(run) / CAPTURE_REQUEST_FILE_NAME)
            self._on_demand.listen()

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Start, where the first step to come is to be profiled: that of the training, or of a leg that goes on."""
        step = self.trainer.global_step
        is_certain = step == 0 or not self._schedule.uses_clock  # several processes have to agree
        if is_certain and not self.profiler_active and (reason := self._schedule.ask(step)):
            self._start(step, reason)

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        """Start or stop, if it is time. The trainer calls `on_boundary` and `on_settled` instead, where it is."""
        self.on_boundary(epoch_idx, step_idx)
        self.on_settled(epoch_idx, step_idx)

    def on_boundary(self, epoch_idx: int, step_idx: int) -> None:
        """Stop, if it is time, and report on captures that are finished."""
        if self.profiler_active and step_idx >= self._stop_step:
            self.stop_trace()
        elif self._is_over_budget:
            self._stop(step_idx, f"max_seconds={self.config.max_seconds:g}")
        self._collect()

    def on_settled(self, epoch_idx: int, step_idx: int) -> None:
        """Start, if it is time: after validation and whatever else happens between two steps."""
        reason = "" if self.profiler_active else self._asks(step_idx)
        if reason:
            self._start(step_idx, reason)

    def on_validation_epoch_start(self, epoch_idx: int, step_idx: int) -> None:
        """Stop, so that no validation is in the trace."""
        if self.profiler_active:
            self._stop(step_idx, "validation")
        self._looked = (-1, "")  # what is left of a window is asked for again after it

    def on_training_end(self) -> None:
        """Stop."""
        if self.profiler_active:
            self._stop(self.trainer.global_step, "the end of training")

    def finalize(self, status: str) -> None:
        """Stop, however training ended, and wait for what happens in the background."""
        if self.profiler_active:
            self._stop(self.trainer.global_step, f"the end of training ({status})")
        self._collect(waits=True)
        self._on_demand.close()

    def state_dict(self) -> dict[str, Any]:
        """What the schedule has to remember."""
        return self._schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self._schedule.load_state_dict(state)

    # --- starting and stopping ---------------------------------------------------------------------------------------

    def start_trace(self, step_idx: int) -> None:
        """Start to trace the steps after `step_idx`. If a trace is being taken already, a warning is logged.

        Args:
            step_idx: The last step that is not to be traced.
        """
        if self.profiler_active:
            LOGGER.warning("%s: a trace is being taken already; it is not started again", type(self).__name__)
            return
        self._start(step_idx, "start_trace")

    def stop_trace(self) -> None:
        """Stop the trace. If none is being taken, nothing is done."""
        if self.profiler_active:
            self._stop(self.trainer.global_step)

    def _start(self, step: int, reason: str) -> None:
        num_steps = min(self._schedule.num_steps(step), self._max_steps)
        for capture in self._finishing:
            capture.wait_until_stopped()
        try:
            self._capture = start_capture(
                self.log_path,
                f"step_{step + 1:08d}",
                step + 1,
                trace_python=self.config.trace_python,
                reason=reason,
                clock=self._clock,
            )
        except CaptureError as error:  # no reason to stop a training
            if str(error) != self._last_error:
                LOGGER.warning("%s", error)
            self._last_error = str(error)
            self._schedule.ended(step + self._schedule.num_steps(step))
            return
        self._stop_step = step + num_steps
        self.trainer.set_capture_state(self, "tracing")

    def _stop(self, step: int, cut_by: str = "") -> None:
        capture, self._capture = self._capture, None
        assert capture is not None
        self._stop_step = NEVER
        if step < capture.result.first_step:
            capture.cancel()
            self.trainer.set_capture_state(self, "finishing" if self._finishing else "none")
            return
        goes_on = bool(cut_by) and self._schedule.goes_on_after_a_break
        self._schedule.ended(step)
        context = self.trainer.capture_context(with_memory=self.config.trace_memory)
        capture.stop(step, context, "" if goes_on else cut_by)
        self._finishing.append(capture)
        self.trainer.set_capture_state(self, "finishing")

    def _collect(self, waits: bool = False) -> None:
        """Report on captures that are finished; on all of them, when they are to be waited for."""
        for capture in [capture for capture in self._finishing if waits or capture.is_done]:
            result = capture.wait()
            self._finishing.remove(capture)
            self._shrink_if_large(result.size_bytes, result.num_steps)
            log_capture(result, self.trainer)
        if not self._finishing and not self.profiler_active:
            self.trainer.set_capture_state(self, "none")

    def _shrink_if_large(self, size_bytes: int, num_steps: int) -> None:
        megabytes = size_bytes / 1e6
        if megabytes > self.config.max_megabytes and num_steps > 1:
            self._max_steps = max(1, int(num_steps * self.config.max_megabytes / megabytes))
            LOGGER.warning(
                "the trace of %d steps takes %.0f MB, more than max_megabytes=%g: the next ones hold %d",
                num_steps,
                megabytes,
                self.config.max_megabytes,
                self._max_steps,
            )


class JaxProfiler(CaptureCallback):
    """Profiles some steps every so many minutes.

    Args:
        config: When, and where to.
        trainer: The trainer, if it is known already.
        data_module: The loaders, if they are known already.
        clock: Where times come from.

    Attributes:
        profile_every_n_minutes: As in the config.
        profile_first_step: As in the config.
        profile_n_steps: As in the config.
    """

    config: JaxProfilerConfig

    def __init__(
        self, config: JaxProfilerConfig, trainer: Any = None, data_module: Any = None, clock: Clock = SYSTEM_CLOCK
    ):
        self._periodic = Periodic(
            config.profile_first_step, config.profile_n_steps, config.profile_every_n_minutes, clock
        )
        super().__init__(config, trainer, data_module, self._periodic, clock)
        self.profile_every_n_minutes = config.profile_every_n_minutes
        self.profile_first_step = config.profile_first_step
        self.profile_n_steps = config.profile_n_steps

    @property
    def profiler_last_time(self) -> float | None:
        """When the last profile ended, or else training began, on the clock; None before."""
        return self._periodic.last_time

    @property
    def log_path(self) -> pathlib.Path:
        """Where the profiles go."""
        run = self.trainer.logger.log_path if self.trainer is not None else None
        if run is None:
            raise ConfigError(
                "JaxProfilerConfig.profile_log_dir is relative to the run's folder, and there is none: set "
                "LoggerConfig.log_path, or use JAXProfiler, whose log_dir is relative to the working directory"
            )
        return pathlib.Path(run) / self.config.profile_log_dir

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Stop, so that nothing but training steps is in the trace."""
        if self.profiler_active:
            self._stop(self.trainer.global_step, "the end of the epoch")


class JAXProfiler(CaptureCallback):
    """Profiles a window of steps, once.

    Args:
        config: Which steps, and where to.
        trainer: The trainer, if it is known already.
        data_module: The loaders, if they are known already.
        clock: Where times come from.
    """

    config: ProfilingConfig

    def __init__(
        self, config: ProfilingConfig, trainer: Any = None, data_module: Any = None, clock: Clock = SYSTEM_CLOCK
    ):
        super().__init__(config, trainer, data_module, StepWindow(config.start_step, config.end_step), clock)

    @property
    def log_path(self) -> pathlib.Path:
        """Where the profiles go."""
        return pathlib.Path(self.config.log_dir)
