"""Decides when a checkpoint is due and which of them are kept. The trainer knows how to write one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils

from trackside.callbacks.base import Callback, CallbackConfig
from trackside.callbacks.monitor import Mode, Monitor, check_mode, find_metric
from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import ConfigError
from trackside.run_layout import CHECKPOINTS_FOLDER
from trackside.schedule import Every

LOOK_EVERY_N_STEPS = 16


@dataclass
class CheckpointConfig(CallbackConfig):
    """When to save and what to keep. The latest checkpoint is always kept beside the best."""

    dirpath: str | None = None
    """Folder of the checkpoints, relative to the working directory; None for `checkpoints` in the run's folder."""
    monitor: str | None = None
    """The metric by which a checkpoint is best, such as `val_loss`; None keeps the latest one."""
    mode: Mode = "min"
    """Whether lower or higher is better."""
    save_top_k: int = 1
    """How many of the best are kept; -1 for all."""
    every_n_minutes: float = -1
    """Save after every so many minutes too; -1 for never."""

    def __post_init__(self) -> None:
        check_mode(self.mode, "CheckpointConfig.mode")
        if self.save_top_k < -1:
            raise ConfigError(f"CheckpointConfig.save_top_k: expected -1 for all or a number, got {self.save_top_k}")
        if self.every_n_minutes <= 0 and self.every_n_minutes != -1:
            raise ConfigError(
                f"CheckpointConfig.every_n_minutes: expected a positive number or -1, got {self.every_n_minutes}"
            )

    def create(self, trainer: Any, data_module: Any = None) -> "ModelCheckpoint":
        """Build the callback."""
        return ModelCheckpoint(self, trainer, data_module)


def steps_to_keep(metrics: Mapping[int, float | None], save_top_k: int, mode: Mode) -> set[int]:
    """Which steps to keep: the latest, and the best of those whose metric is finite.

    Args:
        metrics: The monitored metric of each step that is there; None where it was not measured.
        save_top_k: How many of the best; -1 for all steps.
        mode: Whether lower or higher is better.
    """
    if save_top_k < 0 or not metrics:
        return set(metrics)
    ranked = [(value, step) for step, value in metrics.items() if value is not None and math.isfinite(value)]
    ranked.sort(key=lambda pair: (pair[0] if mode == "min" else -pair[0], -pair[1]))
    best = {step for _, step in ranked[:save_top_k]}
    return best | {max(metrics)}


class ModelCheckpoint(Callback):
    """Saves the training: after validations, epochs, steps or minutes.

    With a validation set, a checkpoint is saved after each validation of every `every_n_epochs` epochs, so that its
    metrics go with it; without one, after each such epoch.
    """

    config: CheckpointConfig

    def __init__(
        self,
        config: CheckpointConfig,
        trainer: Any = None,
        data_module: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ):
        super().__init__(config, trainer, data_module)
        self._steps = Every(config.every_n_steps, "CheckpointConfig.every_n_steps")
        self.plan = self
        self._clock = clock
        self._monitor = Monitor(config.monitor, type(self).__name__) if config.monitor else None
        self._metrics: dict[str, Any] | None = None
        self._is_due = False
        self._saved_at_s = 0.0
        self._looked_at = -1, False

    @property
    def directory(self) -> Path | None:
        """Where the checkpoints are; None if neither the config nor the run says."""
        if self.config.dirpath is not None:
            return Path(self.config.dirpath)
        log_path = self.trainer.logger.log_path if self.trainer is not None else None
        return None if log_path is None else Path(log_path) / CHECKPOINTS_FOLDER

    def on_training_start(self) -> None:
        """Start counting the minutes."""
        self._saved_at_s, self._looked_at = self._clock.now(), (-1, False)

    def on_filtered_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """An epoch is over: save, unless a validation follows."""
        if self._monitor is not None:
            self._monitor.read(train_metrics, "train")
        if not self.trainer.validates_epoch(epoch_idx):
            self._metrics, self._is_due = dict(train_metrics), True

    def on_filtered_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        """A validation is over: save, with its metrics."""
        if self._monitor is not None:
            self._monitor.read(eval_metrics, "val")
        self._metrics, self._is_due = dict(eval_metrics), True

    def on_settled(self, epoch_idx: int, step_idx: int) -> None:
        """Save, if it is time."""
        if self._is_due or self.is_due(step_idx):
            self.save()

    def next_boundary(self, step: int) -> float:
        """The next step that is due; where minutes count, the clock is looked at every few steps."""
        by_steps = self._steps.next_boundary(step)
        next_look = step - step % LOOK_EVERY_N_STEPS + LOOK_EVERY_N_STEPS
        return min(by_steps, next_look) if self.config.every_n_minutes > 0 else by_steps

    def is_due(self, step: int) -> bool:
        """Whether steps or minutes say that it is time."""
        return self._steps.is_due(step) or self._is_late(step)

    def _is_late(self, step: int) -> bool:
        """Whether the minutes are over by the clock of the first process; looked at once per step."""
        is_shared = jax.process_count() > 1
        if self.config.every_n_minutes <= 0 or (is_shared and step % LOOK_EVERY_N_STEPS):
            return False
        if self._looked_at[0] != step:
            is_late = self._clock.now() - self._saved_at_s >= 60 * self.config.every_n_minutes
            self._looked_at = step, bool(multihost_utils.broadcast_one_to_all(is_late)) if is_shared else is_late
        return self._looked_at[1]

    def on_training_end(self) -> None:
        """Say so if the metric was never there."""
        if self._monitor is not None:
            self._monitor.check_found()

    def save(self) -> None:
        """Save now."""
        metrics, self._metrics, self._is_due = self._metrics, None, False
        self._saved_at_s = self._clock.now()
        self._looked_at = self._looked_at[0], False
        self.trainer.save_checkpoint(self.directory, metrics or {}, self.choose)

    def choose(self, metrics: Mapping[int, Mapping[str, float]]) -> set[int]:
        """The steps to keep, from the metrics of all steps."""
        scores = {step: self.score(values) for step, values in metrics.items()}
        return steps_to_keep(scores, self.config.save_top_k, self.config.mode)

    def rank(self, metrics: Mapping[str, float]) -> float | None:
        """The monitored metric, so that lower is better; infinite where it is not finite."""
        score = self.score(metrics)
        if score is None:
            return None
        signed = score if self.config.mode == "min" else -score
        return signed if math.isfinite(signed) else math.inf

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """The monitored metric among a checkpoint's; None if there is none."""
        if self.config.monitor is None:
            return None
        value = find_metric(metrics, self.config.monitor, "val")
        return find_metric(metrics, self.config.monitor, "train") if value is None else value
