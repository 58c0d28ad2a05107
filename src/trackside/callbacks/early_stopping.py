"""Stops a training that no longer gets better."""

import logging
import math
from dataclasses import dataclass
from typing import Any

from trackside.callbacks.callback import Callback, CallbackConfig
from trackside.callbacks.trainer_view import TrainerView
from trackside.errors import ConfigError
from trackside.monitor import Mode, Monitor, Stage
from trackside.text import count

LOGGER = logging.getLogger(__name__)


@dataclass
class EarlyStoppingConfig(CallbackConfig):
    """When to stop."""

    monitor: str = "val_loss"
    """The metric to watch: `val_loss` or `val/loss` for validation, `train_loss` or `train/loss` for training; a plain
    `loss` is validation's, or training's where nothing is validated."""
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
        super().__post_init__()
        self.build_monitor()
        for name in ("patience", "min_delta"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"EarlyStoppingConfig.{name}: expected 0 or more, got {getattr(self, name)}")
        for name in ("stopping_threshold", "divergence_threshold"):
            if (threshold := getattr(self, name)) is not None and math.isnan(threshold):
                raise ConfigError(f"EarlyStoppingConfig.{name}: expected a number, or None for none; got {threshold}")

    def build_monitor(self) -> Monitor:
        """The metric to watch."""
        return Monitor(self.monitor, self.mode, type(self).__name__)


class EarlyStopping(Callback, config=EarlyStoppingConfig):
    """Stops a training that no longer gets better."""

    config: EarlyStoppingConfig

    def __init__(
        self,
        config: EarlyStoppingConfig | None = None,
        trainer: TrainerView | None = None,
        data_module: Any = None,
    ):
        super().__init__(config, trainer, data_module)
        self._monitor = self.config.build_monitor()
        self.best_score: float | None = None
        self.num_checks_without_improvement = 0
        self._has_stopped = False

    def forget_training(self) -> None:
        """Forget the best score and the patience used up."""
        self.best_score, self.num_checks_without_improvement, self._has_stopped = None, 0, False

    def on_training_start(self) -> None:
        """A training that was stopped stays stopped when it is run again."""
        self._monitor.check(self.trainer.validates)
        if self._has_stopped:
            self.trainer.request_stop("early stopping ended this training before")

    def on_filtered_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Look at the metrics of the epoch."""
        self._check(train_metrics, "train")

    def on_filtered_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        """Look at the metrics of the validation."""
        self._check(eval_metrics, "val")

    def _check(self, metrics: dict[str, Any], stage: Stage) -> None:
        if stage != self._monitor.stage_where(self.trainer.validates):
            return
        value = self._monitor.read(metrics, stage)
        if self._monitor.is_better(value, self.best_score, self.config.min_delta):
            self.best_score, self.num_checks_without_improvement = value, 0
        else:
            self.num_checks_without_improvement += 1
        if reason := self._reason_to_stop(value):
            self._has_stopped = True
            self.trainer.request_stop(f"early stopping: {reason}")

    def _reason_to_stop(self, value: float) -> str:
        config = self.config
        if config.check_finite and not math.isfinite(value):
            return f"{config.monitor} is {value}"
        sign = 1 if config.mode == "min" else -1
        if config.stopping_threshold is not None and sign * value <= sign * config.stopping_threshold:
            return f"{config.monitor}={value:g} has reached {config.stopping_threshold:g}"
        if config.divergence_threshold is not None and sign * value > sign * config.divergence_threshold:
            return f"{config.monitor}={value:g} is worse than {config.divergence_threshold:g}"
        if self.num_checks_without_improvement > 0 and self.num_checks_without_improvement >= config.patience:
            best = f"{self.best_score:g}" if self.best_score is not None else "nothing"
            by = f" by more than min_delta={config.min_delta:g}" if config.min_delta else ""
            checks = count(self.num_checks_without_improvement, "check")
            return f"{config.monitor} did not improve on {best}{by} in {checks}"
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
