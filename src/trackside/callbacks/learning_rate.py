"""Logs the learning rate."""

from dataclasses import dataclass
from typing import Any

from trackside.callbacks.base import Callback, CallbackConfig


@dataclass
class LearningRateMonitorConfig(CallbackConfig):
    """How often to log it; with the epochs unless steps are asked for."""

    def create(self, trainer: Any, data_module: Any = None) -> "LearningRateMonitor":
        """Build the callback."""
        return LearningRateMonitor(self, trainer, data_module)


class LearningRateMonitor(Callback):
    """Logs the learning rate that the next step will use, as `learning_rate`."""

    def __init__(self, config: LearningRateMonitorConfig | None = None, trainer: Any = None, data_module: Any = None):
        super().__init__(LearningRateMonitorConfig() if config is None else config, trainer, data_module)

    def on_filtered_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Add it to the epoch's metrics."""
        train_metrics["learning_rate"] = self.trainer.learning_rate()

    def on_filtered_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        """Log it for the step."""
        self.trainer.logger.log_host_metrics({"learning_rate": self.trainer.learning_rate(step_idx)}, step_idx, "train")
