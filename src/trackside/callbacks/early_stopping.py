"""Stops a training that no longer gets better."""

import logging
import math
from dataclasses import dataclass
from typing import Any

from trackside.callbacks.base import Callback, CallbackConfig
from trackside.callbacks.monitor import Mode, Monitor, check_mode, is_better
from trackside.errors import ConfigError

LOGGER = logging.getLogger(__name__)


@dataclass
class EarlyStoppingConfig(CallbackConfig):
    """When to stop."""

    monitor: str = "val_loss"
    """The metric to watch: `val_loss`, `val/loss` or `loss` for validation, `train_loss` for training."""
    mode: Mode = "min"
    """Whether lower or higher is better."""
    min_delta: float = 0.0
    """By how much a value has to improve on the best to count."""
    patience: int = 10
    """How many checks without improvement are waited for."""
    stopping_threshold: float | None = None
    """Stop as soon as the metric is at least this good."""
    divergence_threshold: float | None = None
    """Stop as soon as the metric is worse than this."""
    check_finite: bool = True
    """Stop when the metric is not finite."""

    def __post_init__(self) -> None:
        check_mode(self.mode, "EarlyStoppingConfig.mode")
        if self.patience < 0 or self.min_delta < 0:
            raise ConfigError(
                f"EarlyStoppingConfig: patience={self.patience} and min_delta={self.min_delta} must not be negative"
            )

    def create(self, trainer: Any, data_module: Any = None) -> "EarlyStopping":
        """Build the callback."""
        return EarlyStopping(self, trainer, data_module)


class EarlyStopping(Callback):
    """Stops a training that no longer gets better."""

    config: EarlyStoppingConfig

    def __init__(self, config: EarlyStoppingConfig, trainer: Any = None, data_module: Any = None):
        super().__init__(config, trainer, data_module)
        self.best_score: float | None = None
        self.num_checks_without_improvement = 0
        self._has_stopped = False
        self._monitor = Monitor(config.monitor, type(self).__name__)

    def on_training_start(self) -> None:
        """A training that was stopped stays stopped when it is run again."""
        if self._has_stopped:
            self.trainer.request_stop("early stopping has ended this training before")

    def on_filtered_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Look at the metrics of the epoch."""
        self._check(train_metrics, "train")

    def on_filtered_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        """Look at the metrics of the validation."""
        self._check(eval_metrics, "val")

    def on_training_end(self) -> None:
        """Say so if the metric was never there."""
        self._monitor.check_found()

    def _check(self, metrics: dict[str, Any], stage: str) -> None:
        value = self._monitor.read(metrics, stage)
        if value is None:
            return
        if is_better(value, self.best_score, self.config.mode, self.config.min_delta):
            self.best_score, self.num_checks_without_improvement = value, 0
        else:
            self.num_checks_without_improvement += 1
        if reason := self._reason_to_stop(value):
            self._has_stopped = True
            self.trainer.request_stop(f"early stopping: {reason}")

    def _reason_to_stop(self, value: float) -> str:
        config = self.config
        if not math.isfinite(value):
            return f"{config.monitor} is {value}" if config.check_finite else ""
        sign = 1 if config.mode == "min" else -1
        if config.stopping_threshold is not None and sign * value <= sign * config.stopping_threshold:
            return f"{config.monitor}={value:g} has reached {config.stopping_threshold:g}"
        if config.divergence_threshold is not None and sign * value > sign * config.divergence_threshold:
            return f"{config.monitor}={value:g} is worse than {config.divergence_threshold:g}"
        if self.num_checks_without_improvement > 0 and self.num_checks_without_improvement >= config.patience:
            best = f"{self.best_score:g}" if self.best_score is not None else "nothing"
            return f"{config.monitor} did not improve on {best} in {config.patience} checks"
        return ""

    def state_dict(self) -> dict[str, Any]:
        """The best score and the patience used up."""
        return {
            "best_score": self.best_score,
            "num_checks": self.num_checks_without_improvement,
            "has_stopped": self._has_stopped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self.best_score, self.num_checks_without_improvement = state["best_score"], state["num_checks"]
        self._has_stopped = state["has_stopped"]
