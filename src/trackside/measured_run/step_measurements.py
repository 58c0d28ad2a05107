"""What is known of steps in addition to their metrics, whoever's loop they are in."""

import logging
from abc import ABC, abstractmethod
from typing import Any

import jax

from trackside.callbacks.trainer_view import CaptureState
from trackside.logger import Logger
from trackside.profiling.calibrate import calibrate_peak
from trackside.profiling.capture import CaptureContext
from trackside.profiling.memory import MemorySampler
from trackside.profiling.recent_steps import RecentStepTimes
from trackside.trace.peaks import Peak, known_peak

LOGGER = logging.getLogger(__name__)


class StepMeasurements(ABC):
    """What callbacks may ask about steps.

    Args:
        logger: Whose `step_time` leaves out steps that a capture disturbs.
        peak: What the device can do, where that was measured.
    """

    def __init__(self, logger: Logger, peak: Peak | None = None):
        self.step_times = RecentStepTimes()
        """How long the last steps took."""
        self.capture_state: CaptureState = "none"
        """Whether steps are traced, or disturbed by a trace."""
        self.calibrated_peak = peak
        """What the device can do, where that was measured."""
        self._logger = logger
        self._capture_states: dict[int, CaptureState] = {}
        self._has_failed_to_count = False

    @property
    @abstractmethod
    def program(self) -> str | None:
        """The compiled program that a step is; None where there are several, or its name is not known."""

    @property
    @abstractmethod
    def current_step(self) -> int:
        """Steps so far."""

    @property
    @abstractmethod
    def device_kind(self) -> str:
        """What the device is called by its maker; empty where that is not known."""

    @property
    @abstractmethod
    def num_devices(self) -> int:
        """How many devices a step runs on."""

    @abstractmethod
    def memory_owners(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Who holds which arrays: some by identity, others by their form."""

    @abstractmethod
    def traced_step(self) -> Any:
        """The step as JAX has traced it; None where that is not known."""

    @abstractmethod
    def flops_per_step(self) -> float | None:
        """The model's own FLOPs in a step; None where they are not known."""

    def set_capture_state(self, who: object, state: CaptureState) -> None:
        """Say, between two steps, whether the following ones are traced, or disturbed by a trace that was taken.

        Steps are marked in the trace, and left out of step times, accordingly.

        Args:
            who: Who takes the capture.
            state: What it does.
        """
        self._capture_states[id(who)] = state
        states = self._capture_states.values()
        state = "tracing" if "tracing" in states else "finishing" if "finishing" in states else "none"
        if (state == "none") != (self.capture_state == "none"):
            change = self._logger.resume_timing if state == "none" else self._logger.pause_timing
            change(self.current_step)
        self.capture_state = state

    def forget_captures(self) -> None:
        """No capture is under way: another training begins."""
        self._capture_states.clear()
        self.capture_state = "none"

    def capture_context(self, with_memory: bool) -> CaptureContext:
        """What a capture of steps has to know in addition to its trace.

        Args:
            with_memory: Whether to look at what fills the memory now.
        """
        memory = None
        if with_memory:
            sampler = MemorySampler(jax.local_devices())
            memory = sampler.sample(self.current_step, *self.memory_owners())
        return CaptureContext(
            program=self.program,
            traced_step=self.traced_step(),
            peak=self._peak,
            num_devices=self._num_peaks,
            memory=memory,
        )

    def step_at_peak_s(self) -> float | None:
        """How long the devices would take at their peak for the model's own FLOPs of a step on batches like the first.

        Returns:
            The time; None where the peak is not known, nothing was compiled, or the FLOPs cannot be counted.
        """
        if self._peak is None or self._has_failed_to_count:
            return None
        try:
            flops = self.flops_per_step()
            return None if flops is None else flops / (self._peak.flops_per_s * self._num_peaks)
        except Exception:  # a figure that is missing is no reason to stop
            self._has_failed_to_count = True
            LOGGER.warning("FLOPs utilization is not known: the step's FLOPs could not be counted", exc_info=True)
            return None

    def peak_spread(self) -> tuple[float, float] | None:
        """How much shorter and longer that time may be, as factors, if the peak was measured; None for one without."""
        peak = self._peak
        if peak is None or peak.flops_per_s_range is None:
            return None
        low, high = peak.flops_per_s_range
        return peak.flops_per_s / high, peak.flops_per_s / low

    @property
    def _num_peaks(self) -> int:
        """How many times the peak of a device all of them have: CPU devices share their cores."""
        return 1 if jax.default_backend() == "cpu" else self.num_devices

    def calibrate_peak(self) -> None:
        """Measure what a device can do, unless it is known. The ledger uses it if that is before the first step."""
        if self._peak is None:
            self.calibrated_peak = calibrate_peak()

    @property
    def _peak(self) -> Peak | None:
        kind = self.device_kind
        return known_peak(kind) or known_peak(kind, "float32") or self.calibrated_peak
