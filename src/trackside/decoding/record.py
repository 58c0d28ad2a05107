"""The record of a decoding training on the console, in W&B and in the event file, and its best model.

<save_dir>/
    events-00000.jsonl, output.log      as for every run
    best.eqx or best.safetensors        the model with the best validation R² so far
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trackside.decoding.model_scores import Evaluation
from trackside.decoding.wandb_run import WandBRun
from trackside.errors import ConfigError
from trackside.files import replacing
from trackside.logger import Logger
from trackside.profiling import TrainingProfiler, get_profiler, log_profiling_metrics

LOGGER = logging.getLogger(__name__)

_MAX_WAIT_S = 10.0


def check_run_name(wandb_run_name: Any) -> None:
    """Raise if a W&B run cannot be called that."""
    if wandb_run_name is not None and not isinstance(wandb_run_name, str):
        raise ConfigError(f"wandb_run_name: expected a string or None, got {wandb_run_name!r}")


@dataclass
class TrainingRecord:
    """The record of one training, to be used as a context manager.

    Args:
        logger: Gets the rows.
        num_epochs: How long the training will be.
        wandb_run_name: What to call its W&B run if none is active.
        best_path: Where the best model goes; None keeps none.
        is_profiled: Whether the global profiler times the training, from zero.
    """

    logger: Logger
    num_epochs: int
    wandb_run_name: str | None
    best_path: Path | None
    is_profiled: bool
    best_r2: float = field(default=-math.inf, init=False)
    """The best R² of validation so far."""
    _has_warned_of_loss: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.wandb = WandBRun(self.wandb_run_name, self.logger.log_path)
        self.profiler: TrainingProfiler | None = get_profiler() if self.is_profiled else None

    def __enter__(self) -> Self:
        if self.profiler is not None:
            self.profiler.reset()  # or the times of a training before would add up with those of this one
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        status = "success" if kind is None else "interrupted" if issubclass(kind, KeyboardInterrupt) else "error"
        self.wandb.finish(status)

    def add(self, evaluation: Evaluation, save: Callable[[Path], None]) -> None:
        """Log an epoch, and keep its model if it is the best so far.

        Args:
            evaluation: What to log.
            save: Writes the model to a path.
        """
        self.logger.epoch, self.logger.step = evaluation.epoch, evaluation.step
        train = evaluation.train.row() | {"epoch_loss": evaluation.mean_loss}
        rows = {"train": train, "val": evaluation.val.row(), "params": evaluation.params, "grads": evaluation.grads}
        for mode, row in rows.items():
            self.logger.log_host_metrics(row, evaluation.step, mode)
        LOGGER.info(
            "epoch %d of %d: loss %.4g, R² of train %.4f, of validation %.4f",
            evaluation.epoch,
            self.num_epochs,
            evaluation.mean_loss,
            evaluation.train.r2.mean,
            evaluation.val.r2.mean,
        )
        self._keep_if_best(evaluation, save)
        if self.profiler is not None:
            if evaluation.epoch == self.num_epochs:
                self.profiler.wait(_MAX_WAIT_S)  # the last calls, and a sample that is being taken
            _log_profile(self.profiler)
        self.wandb.log(_wandb_row(evaluation))  # last, as it takes the profile's figures along

    def warn_of_loss(self, value: float, step: int) -> None:
        """Say once that the loss is not finite."""
        if not self._has_warned_of_loss:
            self._has_warned_of_loss = True
            LOGGER.warning(
                "step %d: the loss is %s. Try a smaller learning rate, or look for NaNs in the data", step, value
            )

    def _keep_if_best(self, evaluation: Evaluation, save: Callable[[Path], None]) -> None:
        r2 = evaluation.val.r2.mean
        if not r2 > self.best_r2:  # also where it is NaN
            return
        self.best_r2 = r2
        path = self.best_path
        if path is None:
            return
        try:
            with replacing(path) as temporary:
                save(temporary)
        except OSError as error:
            LOGGER.error("the best model could not be written to %s: %s", path, error)
            return
        self.logger.run_log.write("best", step=evaluation.step, epoch=evaluation.epoch, val_r2=r2, path=str(path))


def _wandb_row(evaluation: Evaluation) -> dict[str, float]:
    row = {"epoch": float(evaluation.epoch), "step": float(evaluation.step), "train/loss": evaluation.mean_loss}
    row["val/loss"] = evaluation.val.loss
    for name, part in (("train", evaluation.train), ("val", evaluation.val)):
        row |= {f"metrics/{name}.{key}": value for key, value in part.row().items() if key != "loss"}
    for name, statistics in (("params", evaluation.params), ("grads", evaluation.grads)):
        row |= {f"{name}/{key}": value for key, value in statistics.items()}
    return row


def _log_profile(profiler: TrainingProfiler) -> None:
    """Log what the profiler knows, unless it has just logged the same by itself."""
    if profiler.last_logged == (profiler.step_count, frozenset(profiler.get_summary())):
        return
    try:
        log_profiling_metrics()
    except Exception as error:  # a training is worth more than its profile
        LOGGER.warning("the profile could not be logged: %s", error)
