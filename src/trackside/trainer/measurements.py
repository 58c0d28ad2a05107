"""What is known of a training's steps in addition to their metrics: their times and FLOPs, and who holds memory."""

import logging
from typing import Any

import jax
import numpy as np

from trackside.callbacks.trainer_view import CaptureState
from trackside.logger import Logger
from trackside.metrics import MetricLayout
from trackside.profiling.calibrate import calibrate_peak
from trackside.profiling.capture import CaptureContext
from trackside.profiling.memory import MemorySampler
from trackside.profiling.recent_steps import RecentStepTimes
from trackside.trace.flops import count_flops
from trackside.trace.peaks import Peak, known_peak
from trackside.trainer.engine import TRAIN_CALL_NAME, Engine
from trackside.trainer.progress import Progress

LOGGER = logging.getLogger(__name__)


class TrainMeasurements:
    """What callbacks may ask about the steps of a training.

    Args:
        engine: What the training runs on.
        progress: The training.
        logger: Whose `step_time` leaves out steps that a capture disturbs.
        peak: What the device can do, where that was measured.
    """

    def __init__(self, engine: Engine, progress: Progress, logger: Logger, peak: Peak | None = None):
        self.step_times = RecentStepTimes()
        """How long the last steps took."""
        self.capture_state: CaptureState = "none"
        """Whether steps are traced, or disturbed by a trace."""
        self.calibrated_peak = peak
        """What the device can do, where that was measured."""
        self._engine = engine
        self._progress = progress
        self._logger = logger
        self._capture_states: dict[int, CaptureState] = {}
        self._layout = MetricLayout(())
        self._vector: Any = None
        self._batch_form: Any = None

    def begin(self, layout: MetricLayout, vector: Any) -> None:
        """A training begins.

        Args:
            layout: The metrics of its step.
            vector: These before any step, on the device.
        """
        self._layout, self._vector = layout, vector
        self._capture_states.clear()
        self.capture_state = "none"

    def learn_batch(self, batch: Any) -> None:
        """Remember the form of the batches."""
        self._batch_form = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jax.numpy.result_type(leaf)), batch
        )

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
            change(self._progress.cursor.step)
        self.capture_state = state

    def memory_owners(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Who holds which arrays: the state's own by identity, metrics and batches by their form."""
        carry = self._progress.carry
        owners = {
            "params": (carry.params, carry.mutable_variables),
            "optimizer": (carry.opt_state, carry.step, carry.rng),
        }
        batch = self._engine.placement.exmp_batch
        return owners, {"metrics": self._layout.initial, "batch": batch}

    def capture_context(self, with_memory: bool) -> CaptureContext:
        """What a capture of training steps has to know in addition to its trace.

        Args:
            with_memory: Whether to look at what fills the memory now.
        """
        memory = None
        if with_memory:
            sampler = MemorySampler(jax.local_devices())
            memory = sampler.sample(self._progress.cursor.step, *self.memory_owners())
        return CaptureContext(
            program=f"jit_{TRAIN_CALL_NAME}",
            traced_step=self._traced_step(),
            peak=self._peak,
            num_devices=self._num_peaks,
            memory=memory,
        )

    def _traced_step(self) -> Any:
        if self._batch_form is None:
            return None
        return self._engine.traced_step(self._layout, self._progress.carry, self._vector, self._batch_form)

    def step_at_peak_s(self) -> float | None:
        """How long the devices would take at their peak for the model's own FLOPs of a step on batches like the first.

        Returns:
            The time; None where the peak is not known, nothing was compiled, or the FLOPs cannot be counted.
        """
        if self._peak is None:
            return None
        try:
            traced = self._traced_step()
            flops_per_s = self._peak.flops_per_s * self._num_peaks
            return None if traced is None else count_flops(traced).model_flops / flops_per_s
        except Exception:  # a figure that is missing is no reason to stop
            LOGGER.warning("FLOPs utilisation is not known: the step's FLOPs could not be counted", exc_info=True)
            return None

    @property
    def _num_peaks(self) -> int:
        """How many times the peak of a device all of them have: CPU devices share their cores."""
        return 1 if jax.default_backend() == "cpu" else self._engine.mesh.size

    def calibrate_peak(self) -> None:
        """Measure what a device can do, unless it is known. The ledger uses it if that is before the first step."""
        if self._peak is None:
            self.calibrated_peak = calibrate_peak()

    @property
    def _peak(self) -> Peak | None:
        kind = self._engine.mesh.devices.flat[0].device_kind
        return known_peak(kind) or known_peak(kind, "float32") or self.calibrated_peak
