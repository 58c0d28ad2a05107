"""The metric by which a training is judged: what its name means, and which of two values is better.

| written            | means                                                        |
|--------------------|--------------------------------------------------------------|
| `val_loss`, `val/loss`     | validation's `loss`                                  |
| `train_loss`, `train/loss` | training's `loss`, in whichever mode it is logged    |
| `loss`             | validation's, or training's where nothing is validated       |
| `a_loss`, `val_a_loss`     | `loss` of the validation loader `a` of several       |

Whatever hooks and post-processing add counts as well.
"""

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trackside.errors import ConfigError

Mode = Literal["min", "max"]
Stage = Literal["train", "val"]

_LOWER_IS_BETTER = ("loss", "err", "nll", "mse", "mae", "rmse", "perplexity", "ppl", "wer", "cer", "fid")
_HIGHER_IS_BETTER = (
    *("acc", "auc", "auroc", "bleu", "dice", "elbo", "f1", "iou", "likelihood", "ndcg", "precision", "psnr"),
    *("r2", "recall", "reward", "rouge", "score", "ssim"),
)
_LOGGED_AS = ("", "_mean", "_single", "_max", "_std")


@dataclass(frozen=True)
class Monitor:
    """One metric to judge by.

    Args:
        name: The metric, by any of the names that users write.
        mode: Whether lower or higher is better.
        owner: Whose setting it is, for errors.
    """

    name: str
    mode: Mode = "min"
    owner: str = "monitor"

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ConfigError(f"{self.owner}.mode: expected 'min' or 'max', got {self.mode!r}")
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(
                f"{self.owner}.monitor: expected the name of a metric, such as 'val_loss'; got {self.name!r}"
            )

    @property
    def stage(self) -> Stage | None:
        """The stage that the name itself says; None if it says none."""
        for stage in ("val", "train"):
            if self.name.startswith((f"{stage}_", f"{stage}/")):
                return stage
        return None

    def stage_where(self, validates: bool) -> Stage:
        """The stage whose metric it is.

        Args:
            validates: Whether the training validates.
        """
        return self.stage or ("val" if validates else "train")

    def check(self, validates: bool) -> None:
        """Raise if the metric can never appear.

        Args:
            validates: Whether the training validates.
        """
        if self.stage == "val" and not validates:
            raise ConfigError(
                f"{self.owner}.monitor={self.name!r} is a metric of validation, and this training never validates; "
                "pass a validation loader, or monitor a metric of training, such as 'train_loss'"
            )

    def find_name(self, names: Container[str], stage: Stage) -> str | None:
        """The name under which a stage has the metric; None if it does not have it.

        Args:
            names: The stage's own names, such as `loss` or `loss_mean`.
            stage: Whose names they are.
        """
        if self.stage not in (None, stage):
            return None
        written = [self.name]
        if self.stage is not None:
            written.append(self.name[len(stage) + 1 :])
        candidates = (f"{name}{suffix}" for name in written for suffix in _LOGGED_AS)
        return next((name for name in candidates if name in names), None)

    def find(self, metrics: Mapping[str, Any], stage: Stage) -> float | None:
        """The value among the metrics of a stage; None if it is not one of them.

        Args:
            metrics: Numbers by their own names, such as `loss` or `loss_mean`.
            stage: Whose metrics they are.
        """
        name = self.find_name(metrics, stage)
        return None if name is None else float(metrics[name])

    def read(self, metrics: Mapping[str, Any], stage: Stage) -> float:
        """The value among the metrics of a stage.

        Raises:
            ConfigError: It is not one of them; the message has those that are.
        """
        value = self.find(metrics, stage)
        if value is None:
            raise self.not_found(metrics, stage)
        return value

    def not_found(self, names: Iterable[str], stage: Stage) -> ConfigError:
        """The error for a metric that a stage does not have."""
        return ConfigError(
            f"{self.owner}.monitor={self.name!r} is not a logged metric; available in {stage}: "
            f"{', '.join(sorted(names))}"
        )

    def rank(self, value: float | None) -> float:
        """The value such that lower is better; infinite where it is not finite or not there."""
        if value is None or not math.isfinite(value):
            return math.inf
        return value if self.mode == "min" else -value

    def rank_all(self, values: np.ndarray) -> np.ndarray:
        """The same for many values; NaN counts as not there."""
        return np.where(np.isfinite(values), values if self.mode == "min" else -values, math.inf)

    def is_better(self, value: float, than: float | None, min_delta: float = 0.0) -> bool:
        """Whether a value improves on another by more than `min_delta`. One that is not finite never does."""
        if not math.isfinite(value):
            return False
        if than is None or not math.isfinite(than):
            return True
        return self.rank(value) < self.rank(than) - min_delta


def direction_of(name: str) -> Mode:
    """Whether lower or higher is better, judging by the name of a metric alone.

    Args:
        name: The name, such as `loss_mean` or `top5_accuracy`.
    """
    words = name.lower().replace("/", "_").split("_")
    if any(word.startswith(_LOWER_IS_BETTER) for word in words):
        return "min"
    return "max" if any(word.startswith(_HIGHER_IS_BETTER) for word in words) else "min"


def validation_loss(metrics: Mapping[str, float]) -> float:
    """The loss by which validations are compared where nothing is monitored.

    It is `loss`, or that of the first data set; infinite where it is not finite or not there.
    """
    named = metrics.get("loss", next((value for name, value in metrics.items() if name.endswith("_loss")), math.inf))
    return named if math.isfinite(named) else math.inf
