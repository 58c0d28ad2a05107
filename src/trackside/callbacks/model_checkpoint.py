"""Decides when a checkpoint is due and which of them are kept. The trainer knows how to write one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackside.callbacks.callback import Callback, CallbackConfig
from trackside.callbacks.trainer_view import TrainerView
from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import ConfigError
from trackside.monitor import Mode, Monitor, Stage
from trackside.processes import Processes
from trackside.run_layout import CHECKPOINTS_FOLDER, WHERE_A_RUN_IS_GIVEN_ITS_FOLDER
from trackside.schedule import Every, check_interval

LOOK_EVERY_N_STEPS = 16
"""How often the clock is looked at, where minutes count."""
MIN_KEPT = 2
"""At least as many steps are kept, so that there is one to fall back to if the newest is damaged."""


@dataclass
class CheckpointConfig(CallbackConfig):
    """When to save and what to keep. The latest checkpoint is kept in addition to the best, and at least two in all."""

    dirpath: str | None = None
    """Folder of the checkpoints, relative to the working directory; None for `checkpoints` in the run's folder."""
    monitor: str | None = None
    """The metric by which a checkpoint is best, such as `val_loss`; None keeps the latest ones."""
    mode: Mode = "min"
    """Whether lower or higher is better."""
    save_top_k: int = 1
    """How many of the best are kept; -1 for all."""
    every_n_minutes: float = -1
    """Save every N minutes too; -1 for never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.build_monitor()
        if self.save_top_k < -1:
            raise ConfigError(f"CheckpointConfig.save_top_k: expected -1 for all or a number, got {self.save_top_k}")
        check_interval("CheckpointConfig.every_n_minutes", self.every_n_minutes)

    def check_processes(self, processes: Processes) -> None:
        """Every process has to write its part of a checkpoint."""
        if self.main_process_only and processes.are_several:
            raise ConfigError(
                "CheckpointConfig.main_process_only=True: with several processes each writes its part of a checkpoint; "
                "leave it False"
            )

    def build_monitor(self) -> Monitor | None:
        """The metric to choose by, if there is one."""
        if self.monitor is None:
            Monitor("loss", self.mode, type(self).__name__)  # the mode is checked all the same
            return None
        return Monitor(self.monitor, self.mode, type(self).__name__)


def steps_to_keep(ranks: Mapping[int, float], save_top_k: int) -> set[int]:
    """Which steps to keep: the best, and the latest of all; at least `MIN_KEPT`.

    Args:
        ranks: How good each step is, lower being better; infinite where it is not finite or was not measured. Of steps
            that are equally good, the first is best.
        save_top_k: How many of the best; -1 for all steps.
    """
    if save_top_k < 0:
        return set(ranks)
    known = [step for step in sorted(ranks) if ranks[step] < float("inf")]
    kept = set(sorted(known, key=lambda step: ranks[step])[:save_top_k])
    for step in sorted(ranks, reverse=True):
        if step == max(ranks) or len(kept) < MIN_KEPT:
            kept.add(step)
    return kept


class ModelCheckpoint(Callback, config=CheckpointConfig):
    """Saves the training: after validations, epochs, steps or minutes.

    With a validation set, a checkpoint is saved after each validation of every `every_n_epochs` epochs; without one,
    after each such epoch. Metrics of the step that is saved go with it, and only these count for `monitor`.

    Args:
        config: When, and what to keep.
        trainer: The trainer, if it is known already.
        data_module: The loaders, if they are known already.
        clock: Where times come from.
    """

    config: CheckpointConfig

    def __init__(
        self,
        config: CheckpointConfig | None = None,
        trainer: TrainerView | None = None,
        data_module: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ):
        super().__init__(config, trainer, data_module)
        self.monitor = self.config.build_monitor()
        self._steps = Every(self.config.every_n_steps, "CheckpointConfig.every_n_steps")
        self._clock = clock
        self._is_save_due = False
        self._saved_at_s = 0.0
        self.stage: Stage = "val"
        """The stage whose metric is monitored."""

    @property
    def directory(self) -> Path:
        """Where the checkpoints are."""
        if self.config.dirpath is not None:
            return Path(self.config.dirpath)
        log_path = self.trainer.logger.log_path
        if log_path is None:
            raise ConfigError(
                "CheckpointConfig.dirpath: there is no folder for checkpoints; set it, or give the run a folder "
                f"({WHERE_A_RUN_IS_GIVEN_ITS_FOLDER})"
            )
        return Path(log_path) / CHECKPOINTS_FOLDER

    def on_training_start(self) -> None:
        """Start counting the minutes."""
        if self.monitor is not None:
            self.monitor.check(self.trainer.validates)
            self.stage = self.monitor.stage_where(self.trainer.validates)
        self._saved_at_s, self._is_save_due = self._clock.now(), False

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """An epoch is over: see that the metric is there, and save at the cadence, unless a validation follows."""
        self._check(train_metrics, "train")
        super().on_training_epoch_end(train_metrics, epoch_idx)

    def on_filtered_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """An epoch is over: save, unless a validation follows."""
        self._is_save_due = self._is_save_due or not self.trainer.validates_epoch(epoch_idx)

    def on_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        """A validation is over: see that the metric is there, and save at the cadence."""
        self._check(eval_metrics, "val")
        super().on_validation_epoch_end(eval_metrics, epoch_idx, step_idx)

    def on_filtered_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        """A validation is over: save."""
        self._is_save_due = True

    def _check(self, metrics: dict[str, Any], stage: Stage) -> None:
        if self.monitor is not None and stage == self.stage:
            self.monitor.read(metrics, stage)

    def next_boundary(self, step_idx: int) -> float:
        """The next step that is due; where minutes count, the clock is looked at every few steps."""
        by_steps = self._steps.next_boundary(step_idx)
        next_look = step_idx - step_idx % LOOK_EVERY_N_STEPS + LOOK_EVERY_N_STEPS
        return min(by_steps, next_look) if self.config.every_n_minutes > 0 else by_steps

    def decide(self, step_idx: int) -> bool:
        """Whether steps or minutes say that it is time."""
        is_due = self._steps.is_due(step_idx) or self._is_late(step_idx)
        self._is_save_due = self._is_save_due or is_due
        return is_due

    def _is_late(self, step: int) -> bool:
        """Whether the minutes are over, by the clock of the first process."""
        processes = self.trainer.processes
        if self.config.every_n_minutes <= 0 or (processes.are_several and step % LOOK_EVERY_N_STEPS):
            return False
        is_late = self._clock.now() - self._saved_at_s >= 60 * self.config.every_n_minutes
        return bool(processes.broadcast(is_late))

    def on_settled(self, epoch_idx: int, step_idx: int) -> None:
        """Save, if it is time."""
        if self._is_save_due:
            self.save()

    def save(self) -> None:
        """Save now."""
        self._is_save_due, self._saved_at_s = False, self._clock.now()
        self.trainer.save_checkpoint(self.directory, keep=self.choose)

    def choose(self, metrics: Mapping[int, Mapping[str, Mapping[str, float]]]) -> set[int]:
        """The steps to keep.

        Args:
            metrics: For each saved step, its metrics by stage.
        """
        return steps_to_keep({step: self.rank(stages) for step, stages in metrics.items()}, self.config.save_top_k)

    def rank(self, stages: Mapping[str, Mapping[str, float]]) -> float:
        """How good a step is by what is monitored, lower being better; infinite if that is not known.

        Args:
            stages: The step's metrics by stage.
        """
        if self.monitor is None or self.stage not in stages:
            return float("inf")
        return self.monitor.rank(self.monitor.find(stages[self.stage], self.stage))
