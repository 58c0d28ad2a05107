"""What is found out about a model at the end of an epoch: how good it is, and what its arrays look like."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trackside.decoding.r2 import R2, r2_score
from trackside.errors import ConfigError
from trackside.schedule import Every

STATISTICS = ("mean", "std", "norm", "max_abs")
"""The figures of one array, in the order in which they are packed. Of complex arrays those of the absolute values."""


@dataclass(frozen=True)
class Score:
    """How good a model is on a data set."""

    loss: float
    r2: R2

    def row(self) -> dict[str, float]:
        """The score as numbers by name, each output by its index."""
        return {"loss": self.loss, "r2": self.r2.mean} | {
            f"r2.{index}": float(value) for index, value in enumerate(self.r2.per_output)
        }


@dataclass(frozen=True)
class Evaluation:
    """Everything that is logged at the end of an epoch."""

    epoch: int
    step: int
    mean_loss: float
    """Of the epoch's batches, during training."""
    train: Score
    val: Score
    params: dict[str, float]
    grads: dict[str, float]


def score(predict: Callable[[slice], tuple[float, np.ndarray]], targets: np.ndarray, parts: list[slice]) -> Score:
    """Evaluate part by part.

    Args:
        predict: Gives mean loss and predictions of a part of the data set.
        targets: All targets.
        parts: The parts, which together are the data set.
    """
    results = [predict(part) for part in parts]
    lengths = [len(predictions) for _, predictions in results]
    loss = float(np.average([loss for loss, _ in results], weights=lengths))
    return Score(loss, r2_score(targets, np.concatenate([predictions for _, predictions in results])))


def array_statistics(array: np.ndarray) -> list[float]:
    """The `STATISTICS` of an array on the host."""
    values = np.abs(array) if np.iscomplexobj(array) else array
    values = values.astype(np.float32)
    return [float(values.mean()), float(values.std()), float(np.linalg.norm(values)), float(np.abs(values).max())]


def name_statistics(names: list[str], rows: np.ndarray) -> dict[str, float]:
    """Statistics by `<array>.<statistic>`, and the norm of all arrays together as `norm`.

    Args:
        names: What the arrays are called.
        rows: Their statistics, one row per array.
    """
    rows = np.asarray(rows, np.float64).reshape(len(names), len(STATISTICS))
    named = {
        f"{name}.{statistic}": float(value)
        for name, row in zip(names, rows, strict=True)
        for statistic, value in zip(STATISTICS, row, strict=True)
    }
    return {"norm": float(np.linalg.norm(rows[:, STATISTICS.index("norm")]))} | named


def evaluation_cadence(epochs_name: str, num_epochs: Any, log_every: Any, eval_batch_size: Any) -> Every:
    """Refuse numbers that cannot work.

    Args:
        epochs_name: What the loop calls its number of epochs.
        num_epochs: That number.
        log_every: Every how many epochs to evaluate; -1 for after the last only.
        eval_batch_size: How many samples to evaluate at once, or None for all.

    Returns:
        When to evaluate, in addition to after the last epoch.

    Raises:
        ConfigError: It names the argument and the value.
    """
    if not _is_whole(num_epochs) or num_epochs < 1:
        raise ConfigError(f"{epochs_name}: expected a whole number of epochs, at least 1; got {num_epochs!r}")
    if not _is_whole(log_every) or log_every == 0 or log_every < -1:
        raise ConfigError(
            f"log_every: expected a positive number of epochs, or -1 for the last only; got {log_every!r}"
        )
    if eval_batch_size is not None and (not _is_whole(eval_batch_size) or eval_batch_size < 1):
        raise ConfigError(f"eval_batch_size: expected a positive number of samples, or None; got {eval_batch_size!r}")
    return Every(log_every, "log_every")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
