"""What a callback may ask of its trainer."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import optax

from trackside.logger import Logger
from trackside.logger.run_log import RunLog
from trackside.processes import Processes
from trackside.profiling.capture import CaptureContext
from trackside.profiling.recent_steps import RecentStepTimes

CaptureState = Literal["none", "tracing", "finishing"]
"""Whether steps are being traced, or are disturbed by what happens to a trace that was taken."""

StageMetrics = Mapping[str, Mapping[str, float]]
"""The metrics of a step by stage: `train` where an epoch ended with it, `val` where it was validated."""

Keep = Callable[[Mapping[int, StageMetrics]], Iterable[int]]
"""From the metrics of all saved steps, chooses the steps to keep."""


class Measurements(Protocol):
    """What is known of a training's steps, in addition to their metrics."""

    @property
    def step_times(self) -> RecentStepTimes:
        """How long the last steps took."""
        ...

    def set_capture_state(self, who: object, state: CaptureState) -> None:
        """Say, between two steps, whether the following ones are traced, or disturbed by a trace that was taken.

        Args:
            who: Who takes the capture.
            state: What it does.
        """
        ...

    def memory_owners(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Who holds which arrays: the state's own by identity, metrics and batches by their form."""
        ...

    def capture_context(self, with_memory: bool) -> CaptureContext:
        """What a capture of training steps has to know in addition to its trace.

        Args:
            with_memory: Whether to look at what fills the memory now.
        """
        ...

    def calibrate_peak(self) -> None:
        """Measure what a device can do, unless it is known."""
        ...


class TrainerView(Protocol):
    """The trainer as callbacks see it. `TrainerModule` is one; a callback depends on nothing else of it."""

    @property
    def global_step(self) -> int:
        """Number of training steps done."""
        ...

    @property
    def epoch(self) -> int:
        """The current epoch, from 1; 0 before the first."""
        ...

    @property
    def state(self) -> Any:
        """The training state. Donated to the next step: copy what has to outlive it."""
        ...

    @property
    def logger(self) -> Logger:
        """The logger, for metrics, images and text. Its `log_path` is the run's folder."""
        ...

    @property
    def run_log(self) -> RunLog:
        """The run log, for rows of other kinds."""
        ...

    @property
    def processes(self) -> Processes:
        """The processes that train together."""
        ...

    @property
    def measurements(self) -> Measurements:
        """What is known of the steps, in addition to their metrics."""
        ...

    @property
    def validates(self) -> bool:
        """Whether this training validates at all."""
        ...

    def validates_epoch(self, epoch_idx: int) -> bool:
        """Whether a validation follows the given epoch."""
        ...

    def learning_rate(self, step: int | None = None) -> float:
        """The learning rate after a number of steps; the current one if left out."""
        ...

    def request_stop(self, reason: str) -> None:
        """End the training after the current step, as one that is done.

        Args:
            reason: Why, for the log.
        """
        ...

    def save_checkpoint(
        self,
        directory: str | Path | None = None,
        metrics: Mapping[str, float] | None = None,
        keep: Keep | None = None,
    ) -> None:
        """Save the training at its current step, between two steps only.

        Args:
            directory: The folder of the checkpoints; `checkpoints` in the run's folder if left out.
            metrics: Metrics of a validation that go with the checkpoint; those of the current step if left out.
            keep: Chooses the steps to keep; if left out, all are kept.
        """
        ...

    def extend_optimizer(
        self,
        transform: optax.GradientTransformation,
        evaluation_params: Callable[[Any], Any] | None = None,
    ) -> None:
        """Let another transformation follow the optimizer, before training or between two trainings.

        Args:
            transform: The transformation.
            evaluation_params: From a state, the parameters that evaluation shall use instead of its own.
        """
        ...
