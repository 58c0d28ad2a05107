"""A loop of the user's own as callbacks see it: what they may ask of a trainer, as far as there is an answer."""

from typing import Any, NoReturn

from trackside.callbacks import (
    EMA,
    Callback,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    ProgressBarCallback,
)
from trackside.callbacks.callback import hears_steps
from trackside.callbacks.callback_list import CallbackArgument, bind_callbacks
from trackside.errors import ConfigError
from trackside.logger import Logger
from trackside.logger.run_log import RunLog
from trackside.measured_run.step_measurements import StepMeasurements
from trackside.processes import Processes

_OF_TRAINERS = (EMA, EarlyStopping, LearningRateMonitor, ModelCheckpoint, ProgressBarCallback)


class RunView:
    """Stands for the trainer of a loop that has none.

    Args:
        logger: The run's logger.
        processes: The processes of the run.
        measurements: What is known of its steps.
    """

    def __init__(self, logger: Logger, processes: Processes, measurements: StepMeasurements):
        self.logger = logger
        self.processes = processes
        self.measurements = measurements

    @property
    def global_step(self) -> int:
        """Steps so far."""
        return self.measurements.current_step

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self.logger.epoch

    @property
    def run_log(self) -> RunLog:
        """The run log."""
        return self.logger.run_log

    @property
    def validates(self) -> bool:
        """Whether the loop validates: always False, since a loop of the user's own does not announce it."""
        return False

    def validates_epoch(self, epoch_idx: int) -> bool:
        """Whether a validation follows an epoch: always False, likewise."""
        del epoch_idx
        return False

    @property
    def state(self) -> Any:
        """The loop has it, and does not show it."""
        self._refuse("state")

    def learning_rate(self, step: int | None = None) -> float:
        """The loop has it, and does not show it."""
        self._refuse("learning_rate")

    def request_stop(self, reason: str) -> None:
        """Only the loop can stop itself."""
        self._refuse("request_stop")

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Only the loop has something to save."""
        self._refuse("save_checkpoint")

    def extend_optimizer(self, *args: Any, **kwargs: Any) -> None:
        """Only the loop has an optimizer."""
        self._refuse("extend_optimizer")

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigError(f"callbacks: one of them asks for trainer.{what}, which a loop of your own does not have")


def bind_to_loop(given: CallbackArgument, view: RunView) -> list[Callback]:
    """Callbacks that run in a loop of the user's own.

    Args:
        given: Callbacks, or configs to build them from.
        view: What they may ask.

    Raises:
        ConfigError: One of them needs a trainer.
    """
    bound = bind_callbacks(given, view)
    for callback in bound:
        if isinstance(callback, _OF_TRAINERS) or hears_steps(callback):
            raise ConfigError(
                f"callbacks: {type(callback).__name__} needs a trainer; in a loop of your own, use JAXProfiler, "
                "JaxProfiler, MemoryProfiler, or callbacks that act at boundaries"
            )
    return bound
