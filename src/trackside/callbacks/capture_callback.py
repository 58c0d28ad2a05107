"""Captures of training steps, taken when a schedule or a trigger asks for one.

A capture starts and ends at a boundary, where all steps before have completed and none after has begun, so it holds
exactly the steps that were asked for. It is ended before validation starts, and however training ends. Training waits
until the tracer has stopped, so that nothing later is in the trace and another capture may start at the same boundary.
Writing and analysis happen in the background (see `trackside.profiling.capture`).
"""

import logging
import pathlib
from dataclasses import dataclass, field
from typing import Any

from trackside.callbacks.callback import Callback, CallbackConfig, default_hook
from trackside.callbacks.capture_output import log_capture
from trackside.callbacks.capture_schedule import CaptureSchedule
from trackside.callbacks.capture_triggers import LookAround, OnDemand, OnSlowStep
from trackside.callbacks.trainer_view import TrainerView
from trackside.clock import Clock
from trackside.errors import CaptureError, ConfigError
from trackside.profiling.capture import NO_CONTEXT, Capture, start_capture
from trackside.run_layout import CAPTURE_REQUEST_FILE_NAME
from trackside.schedule import NEVER

LOGGER = logging.getLogger(__name__)

BY_HAND = "start_trace"
"""Why a capture was started that the user has asked for in code."""
LOOK_TOGETHER_EVERY_N_STEPS = 64
"""How often several processes agree on whether to capture."""


@dataclass
class CaptureConfig(CallbackConfig):
    """What both profilers can be told, in addition to when to start."""

    on_demand: bool = field(default=True, kw_only=True)
    """Capture also when `capture.now` is touched in the run's folder, or on SIGUSR2."""
    slow_step_factor: float = field(default=-1.0, kw_only=True)
    """Capture also after a step that took N times the running median; below 0 for never."""
    slow_step_max_per_hour: int = field(default=2, kw_only=True)
    """How many captures slow steps may cause per hour."""
    max_seconds: float = field(default=60.0, kw_only=True)
    """End a capture after this many seconds, even if it lacks steps."""
    max_megabytes: float = field(default=512.0, kw_only=True)
    """After a trace that was larger, the next ones hold fewer steps."""
    calibrate_peak: bool = field(default=False, kw_only=True)
    """Measure what the device can do, before training, where no table has it; takes a second."""

    def check_limits(self) -> None:
        """Refuse limits that cannot work."""
        name = type(self).__name__
        for limit in ("max_seconds", "max_megabytes"):
            if not getattr(self, limit) > 0:
                raise ConfigError(f"{name}.{limit}: expected a positive number, got {getattr(self, limit)}")
        if not (self.slow_step_factor < 0 or self.slow_step_factor > 1):
            raise ConfigError(
                f"{name}.slow_step_factor: expected more than 1, or below 0 for never; got {self.slow_step_factor}"
            )
        if self.slow_step_max_per_hour < 0:
            raise ConfigError(f"{name}.slow_step_max_per_hour: expected 0 or more, got {self.slow_step_max_per_hour}")


class CaptureCallback(Callback):
    """Takes captures when its schedule or a trigger asks for one.

    Args:
        config: When, and within which limits.
        trainer: The trainer, if it is known already.
        data_module: The loaders, if they are known already.
        schedule: When captures are planned.
        clock: Where times come from.
    """

    config: Any

    def __init__(
        self, config: Any, trainer: TrainerView | None, data_module: Any, schedule: CaptureSchedule, clock: Clock
    ):
        super().__init__(config, trainer, data_module)
        self._schedule = schedule
        self._clock = clock
        self._look_around = LookAround(clock)
        self._on_demand = OnDemand(None)
        self._on_slow_step = OnSlowStep(config.slow_step_factor, config.slow_step_max_per_hour, clock)
        self._capture: Capture | None = None
        self._finishing: list[Capture] = []
        self._stop_step: float = NEVER
        self._max_steps: float = NEVER
        self._start_reason = ""
        """Why a capture starts when the boundary is settled; empty if none does."""
        self._asks_again = False
        """Whether a capture has just ended, so that the next one, or what is left of it, is asked for once more."""
        self._is_planned = False
        """Whether a loop asks for boundaries, and so acts at the right moment by itself."""
        self._last_error = ""

    def forget_training(self) -> None:
        """Forget which captures were taken."""
        self._schedule.reset()

    @property
    def log_path(self) -> pathlib.Path:
        """Where the profiles go."""
        raise NotImplementedError

    @property
    def profiler_active(self) -> bool:
        """Whether steps are being traced."""
        return self._capture is not None

    # --- when --------------------------------------------------------------------------------------------------------

    def next_boundary(self, step_idx: int) -> float:
        """The next step at which to start, stop or look around."""
        self._is_planned = True
        planned = self._stop_step if self.profiler_active else self._schedule.next_start(step_idx)
        if self._is_shared:  # all processes have to stop at the same steps
            together = (step_idx // LOOK_TOGETHER_EVERY_N_STEPS + 1) * LOOK_TOGETHER_EVERY_N_STEPS
            return min(planned, together) if self._looks_around else planned
        return min(planned, self._look_around.next_step(step_idx)) if self._looks_around else planned

    def decide(self, step_idx: int) -> bool:
        """Whether there is anything to do at the end of a step: stop, report, or start once all is settled."""
        if self.profiler_active:
            return step_idx >= self._stop_step or self._is_over_budget
        self._start_reason = self._ask(step_idx)
        return bool(self._start_reason) or any(capture.is_done for capture in self._finishing)

    @property
    def _looks_around(self) -> bool:
        config = self.config
        is_asked = self._schedule.uses_clock or config.on_demand or config.slow_step_factor > 0
        return is_asked or self.profiler_active or bool(self._finishing)

    @property
    def _is_shared(self) -> bool:
        return self.trainer.processes.are_several and not self.config.main_process_only

    @property
    def _is_over_budget(self) -> bool:
        return self._capture is not None and not self._is_shared and self._capture.seconds > self.config.max_seconds

    def _ask(self, step: int) -> str:
        """Why a capture is to start at the end of `step`; empty if none is. A request is answered once."""
        if not self._is_shared:
            return self._schedule.ask(step) or self._ask_triggers(step)
        if self._schedule.next_start(step - 1) == step:
            return self._schedule.ask(step)
        if step % LOOK_TOGETHER_EVERY_N_STEPS:
            return ""
        processes = self.trainer.processes
        asked = self._schedule.ask(step) or self._ask_triggers(step) if processes.is_main else ""
        return "asked for by the main process" if processes.broadcast(bool(asked)) else ""

    def _ask_triggers(self, step: int) -> str:
        return self._on_demand.ask() or self._on_slow_step.ask(step, self.trainer.measurements.step_times)

    # --- hooks -------------------------------------------------------------------------------------------------------

    def on_training_start(self) -> None:
        """Begin to watch."""
        self.log_path  # noqa: B018 - says now, and not hours later, where profiles cannot go
        self._schedule.begin(self.trainer.global_step)
        if self.config.calibrate_peak:
            self.trainer.measurements.calibrate_peak()
        if self.config.on_demand and self.trainer.processes.is_main:
            run = self.trainer.logger.log_path
            self._on_demand = OnDemand(None if run is None else pathlib.Path(run) / CAPTURE_REQUEST_FILE_NAME)
            self._on_demand.listen()

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Start, where the first step to come is to be profiled: that of the training, or of a leg that resumes."""
        step = self.trainer.global_step
        is_certain = step == 0 or not self._schedule.uses_clock  # several processes have to agree
        if is_certain and not self.profiler_active and (reason := self._schedule.ask(step)):
            self._start(step, reason)

    @default_hook
    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        """Start or stop, if it is time, for a loop that knows no boundaries. The trainer's asks `decide` instead."""
        if not self._is_planned:
            if self.decide(step_idx):
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
        reason, self._start_reason = self._start_reason, ""
        asks_again, self._asks_again = self._asks_again, False
        if not self.profiler_active and (reason := reason or (self._ask(step_idx) if asks_again else "")):
            self._start(step_idx, reason)

    def on_validation_epoch_start(self, epoch_idx: int, step_idx: int) -> None:
        """Stop, so that no validation is in the trace of steps; one started by hand before any step is left alone."""
        if self.profiler_active and not self._is_by_hand_without_steps(step_idx):
            self._stop(step_idx, "validation")

    def on_training_end(self) -> None:
        """Stop, and say which planned capture the training never came to."""
        step = self.trainer.global_step
        if self.profiler_active:
            self._stop(step, "the end of training")
        if missed := self._schedule.missed(step):
            LOGGER.warning(
                "%s: no profile of %s was taken: training ended after step %d", type(self).__name__, missed, step
            )

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

        What else runs until `stop_trace`, such as an evaluation or your own loop, is traced as well. Without a step of
        the trainer, the trace has no step marks, and its tables are about everything that ran.

        Args:
            step_idx: The last step that is not to be traced.
        """
        if self.profiler_active:
            LOGGER.warning("%s: a trace is already being taken; it is not started again", type(self).__name__)
            return
        self._start(step_idx, BY_HAND)

    def stop_trace(self) -> None:
        """Stop the trace. If none is being taken, nothing is done."""
        if self.profiler_active:
            self._stop(self.trainer.global_step)

    def _start(self, step: int, reason: str) -> None:
        num_steps = min(self._schedule.num_steps(step), self._max_steps)
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
        self.trainer.measurements.set_capture_state(self, "tracing")

    def _stop(self, step: int, cut_by: str = "") -> None:
        capture, self._capture = self._capture, None
        assert capture is not None
        self._stop_step, self._asks_again = NEVER, True
        has_steps = step >= capture.result.first_step
        if not has_steps and capture.result.reason != BY_HAND:
            capture.cancel()
            self.trainer.measurements.set_capture_state(self, "finishing" if self._finishing else "none")
            return
        goes_on = bool(cut_by) and self._schedule.goes_on_after_a_break
        context = NO_CONTEXT
        if has_steps:
            self._schedule.ended(step)
            context = self.trainer.measurements.capture_context(with_memory=self.config.trace_memory)
        capture.stop(step, context, "" if goes_on else cut_by)
        capture.wait_until_stopped()  # before anything else is dispatched, which would be in the trace too
        self._finishing.append(capture)
        self.trainer.measurements.set_capture_state(self, "finishing")

    def _is_by_hand_without_steps(self, step: int) -> bool:
        result = None if self._capture is None else self._capture.result
        return result is not None and result.reason == BY_HAND and step < result.first_step

    def _collect(self, waits: bool = False) -> None:
        """Report on captures that are finished; on all of them, when they are to be waited for."""
        for capture in [capture for capture in self._finishing if waits or capture.is_done]:
            result = capture.wait()
            self._finishing.remove(capture)
            self._shrink_if_large(result.size_bytes, result.num_steps)
            log_capture(result, self.trainer)
        if not self._finishing and not self.profiler_active:
            self.trainer.measurements.set_capture_state(self, "none")

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
