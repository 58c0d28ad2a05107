"""Logs the learning rate."""

from dataclasses import dataclass
from typing import Any

from trackside.callbacks.callback import Callback, CallbackConfig


@dataclass
class LearningRateMonitorConfig(CallbackConfig):
    """How often to log it; with the epochs unless steps are asked for."""


class LearningRateMonitor(Callback, config=LearningRateMonitorConfig):
    """Logs the learning rate that the next step will use, as `learning_rate`."""

    acts_on_steps = False

    def on_filtered_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Add it to the epoch's metrics."""
        train_metrics["learning_rate"] = self.trainer.learning_rate()

    def on_filtered_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        """Log it for the step."""
        self.trainer.logger.log_host_metrics({"learning_rate": self.trainer.learning_rate(step_idx)}, step_idx, "train")
