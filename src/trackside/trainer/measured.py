"""The part of the trainer that profilers ask: how long steps took, what they are made of, what fills the memory."""

import logging
from typing import Any

import jax

from trackside.profiling.calibrate import calibrate_peak
from trackside.profiling.capture import CaptureContext
from trackside.profiling.ledger import LedgerTotals
from trackside.profiling.memory import MemorySampler
from trackside.profiling.recent_steps import RecentStepTimes
from trackside.trace.flops import count_flops
from trackside.trace.peaks import Peak, known_peak
from trackside.trainer.loop import CaptureState, TrainLoop
from trackside.trainer.saved_states import SavedStates
from trackside.trainer.step import TRAIN_CALL_NAME

LOGGER = logging.getLogger(__name__)


class MeasuredSteps(SavedStates):
    """What callbacks may know of the steps, beside their metrics."""

    _loop: TrainLoop | None = None
    _calibrated_peak: Peak | None = None

    @property
    def step_times(self) -> RecentStepTimes:
        """How long the last steps of the training took."""
        return self._loop.meter.step_times if self._loop is not None else RecentStepTimes()

    def set_capture_state(self, who: object, state: CaptureState) -> None:
        """Say, between two steps, whether the following ones are traced, or disturbed by a trace that was taken.

        Steps are marked in the trace, and left out of step times, accordingly.

        Args:
            who: Who takes the capture.
            state: What it does.
        """
        if self._loop is not None:
            self._loop.set_capture_state(who, state)

    def memory_owners(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Who holds which arrays: the state's own by identity, metrics and batches by their form."""
        carry = self._position.carry
        owners = {
            "params": (carry.params, carry.mutable_variables),
            "optimizer": (carry.opt_state, carry.step, carry.rng),
        }
        return owners, {"metrics": self.init_train_metrics().layout.initial, "batch": self.exmp_batch}

    def capture_context(self, with_memory: bool) -> CaptureContext:
        """What a capture of training steps has to know beside its trace.

        Args:
            with_memory: Whether to look at what fills the memory now.
        """
        memory = None
        if with_memory:
            memory = MemorySampler(jax.local_devices()).sample(self.global_step, *self.memory_owners())
        return CaptureContext(
            program=f"jit_{TRAIN_CALL_NAME}",
            traced_step=self._traced_step(),
            peak=self._peak(),
            num_devices=self._num_peaks,
            memory=memory,
        )

    def _traced_step(self) -> Any:
        """The step as it was traced when it was compiled, which JAX remembers: nothing is traced again."""
        loop, trace = self._loop, getattr(self._train_call, "trace", None)
        if loop is None or loop.batch_form is None or trace is None:  # nothing was compiled, as in debug mode
            return None
        state = jax.tree.map(_form, (self._position.carry, loop.fresh_vector))
        return trace(*state, loop.batch_form)

    def _step_at_peak_s(self) -> float | None:
        """How long the devices would take at their peak for the model's own FLOPs of a step on batches like the first.

        Returns:
            The time; None where the peak is not known, nothing was compiled, or the FLOPs cannot be counted.
        """
        peak = self._peak()
        if peak is None:
            return None
        try:
            traced = self._traced_step()
            return None if traced is None else count_flops(traced).model_flops / (peak.flops_per_s * self._num_peaks)
        except Exception:  # a figure that is missing is no reason to stop
            LOGGER.warning("FLOPs utilisation is not known: the step's FLOPs could not be counted", exc_info=True)
            return None

    @property
    def _num_peaks(self) -> int:
        """How many times the peak of a device all of them have: CPU devices share their cores."""
        return 1 if jax.default_backend() == "cpu" else self.mesh.size

    def _notes_on_speed(self, totals: LedgerTotals) -> list[str]:
        notes = []
        if totals.mfu is not None:
            notes.append(f"FLOPs utilisation {100 * totals.mfu:.1f} % in steps and waiting for data")
        time, now = self._position.time, self.clock.timestamp()
        goodput = time.goodput(now)
        if goodput is not None and time.leg > 1:
            notes.append(
                f"goodput {100 * goodput:.1f} %: training steps in {now - time.began_at:.0f} s since it began, "
                f"over {time.leg} legs"
            )
        return notes

    def calibrate_peak(self) -> None:
        """Measure what a device can do, unless it is known. The ledger tells of it if that is before the first step."""
        if self._peak() is None:
            self._calibrated_peak = calibrate_peak()

    def _peak(self) -> Peak | None:
        kind = self.mesh.devices.flat[0].device_kind
        return known_peak(kind) or known_peak(kind, "float32") or self._calibrated_peak


def _form(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
