"""What is known of a training's steps in addition to their metrics: their times and FLOPs, and who holds memory."""

from typing import Any

import jax
import numpy as np

from trackside.logger import Logger
from trackside.measured_run.step_measurements import StepMeasurements
from trackside.metrics import MetricLayout
from trackside.profiling.memory import LOOP
from trackside.trace.flops import count_flops
from trackside.trace.peaks import Peak
from trackside.trainer.engine import TRAIN_CALL_NAME, Engine
from trackside.trainer.progress import Progress


class TrainMeasurements(StepMeasurements):
    """What callbacks may ask about the steps of a training.

    Args:
        engine: What the training runs on.
        progress: The training.
        logger: Whose `step_time` leaves out steps that a capture disturbs.
        peak: What the device can do, where that was measured.
    """

    def __init__(self, engine: Engine, progress: Progress, logger: Logger, peak: Peak | None = None):
        super().__init__(logger, peak)
        self._engine = engine
        self._progress = progress
        self._layout = MetricLayout(())
        self._vector: Any = None
        self._batch_form: Any = None
        self._flops: float | None = None

    def begin(self, layout: MetricLayout, vector: Any) -> None:
        """A training begins.

        Args:
            layout: The metrics of its step.
            vector: These before any step, on the device.
        """
        self._layout, self._vector, self._flops = layout, vector, None
        self.forget_captures()

    def learn_batch(self, batch: Any) -> None:
        """Remember the form of the batches."""
        self._batch_form = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jax.numpy.result_type(leaf)), batch
        )

    @property
    def program(self) -> str:
        """The compiled call."""
        return f"jit_{TRAIN_CALL_NAME}"

    @property
    def current_step(self) -> int:
        """Steps so far."""
        return self._progress.cursor.step

    @property
    def device_kind(self) -> str:
        """What the devices of the mesh are called by their maker."""
        return self._engine.mesh.devices.flat[0].device_kind

    @property
    def num_devices(self) -> int:
        """How many devices the mesh has."""
        return self._engine.mesh.size

    def memory_owners(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Who holds which arrays: the state's own and plans by identity, metrics, reports and batches by their form."""
        carry = self._progress.carry
        owners = {
            "params": (carry.params, carry.mutable_variables),
            "optimizer": (carry.opt_state, carry.step, carry.rng),
            LOOP: list(self._engine.plans.values()),
        }
        batch = self._engine.placement.exmp_batch
        return owners, {"metrics": self._layout.initial, "batch": batch, LOOP: self._engine.report_forms()}

    def traced_step(self) -> Any:
        """The step as JAX has traced it; None before the first batch."""
        if self._batch_form is None:
            return None
        return self._engine.traced_step(self._layout, self._progress.carry, self._vector, self._batch_form)

    def flops_per_step(self) -> float | None:
        """The model's own FLOPs of a step on batches like the first."""
        if self._flops is None and (traced := self.traced_step()) is not None:
            self._flops = count_flops(traced).model_flops
        return self._flops
