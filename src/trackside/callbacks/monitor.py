"""Finding and comparing the metric that a callback watches."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from trackside.errors import ConfigError

Mode = Literal["min", "max"]


def check_mode(mode: str, where: str) -> None:
    """Raise unless the mode is one of the two."""
    if mode not in ("min", "max"):
        raise ConfigError(f"{where}: expected 'min' or 'max', got {mode!r}")


def find_metric(metrics: Mapping[str, Any], monitor: str, stage: str) -> float | None:
    """The value of a metric by any of the names that users write.

    Args:
        metrics: Metrics of a stage by their own names, such as `loss`.
        monitor: What the user wrote: `loss`, or `val_loss` and `val/loss` for the stage `val`.
        stage: Which stage they are of: `train` or `val`.
    """
    names = [monitor]
    names += [monitor.removeprefix(prefix) for prefix in (f"{stage}_", f"{stage}/") if monitor.startswith(prefix)]
    for name in [*names, *(f"{name}_mean" for name in names)]:
        if name in metrics:
            return float(metrics[name])
    return None


def is_better(value: float, than: float | None, mode: Mode, min_delta: float = 0.0) -> bool:
    """Whether a value improves on another. One that is not finite never does."""
    if not math.isfinite(value):
        return False
    if than is None or not math.isfinite(than):
        return True
    return value < than - min_delta if mode == "min" else value > than + min_delta


class Monitor:
    """Watches one metric over a training, and says so if it never appears.

    Args:
        name: The metric, by any of the names that users write.
        owner: Whose monitor it is, for the error.
    """

    def __init__(self, name: str, owner: str):
        self.name = name
        self._owner = owner
        self._offered: dict[str, list[str]] = {}
        self._was_found = False

    def read(self, metrics: Mapping[str, Any], stage: str) -> float | None:
        """The metric's value, if it is among these."""
        value = find_metric(metrics, self.name, stage)
        self._was_found = self._was_found or value is not None
        self._offered[stage] = sorted(metrics)
        if stage == "val" and not self._was_found and "train" in self._offered:
            self.check_found()
        return value

    def check_found(self) -> None:
        """Raise if the metric was never there, with the names of those that were."""
        if not self._was_found and self._offered:
            listed = "; ".join(f"{stage}: {', '.join(names)}" for stage, names in self._offered.items())
            raise ConfigError(f"{self._owner}: monitor={self.name!r} is none of the metrics. There are {listed}")
