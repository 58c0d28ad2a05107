"""The metric by which a run is judged, and its best value.

It is what a checkpoint or early stopping monitors, by the same names as there; without one the validation loss, then
any other validated metric, then the training loss.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trackside.monitor import Mode, Monitor, direction_of
from trackside.runs.metric_table import MetricTable

if TYPE_CHECKING:
    from trackside.runs.run import Run

TRAIN_EPOCH_MODE = "train_epoch"
"""The mode of a training epoch's row, which has what callbacks monitor of training."""
_NOT_RESULTS = ("epoch", "step_time", "epoch_time", "grad_norm", "param_norm", "lr", "learning_rate")


@dataclass(frozen=True)
class Monitored:
    """A metric by which a run is judged."""

    mode: str
    name: str
    direction: Mode

    @property
    def label(self) -> str:
        """As people write it: `val_loss`."""
        stage = "train" if self.mode == TRAIN_EPOCH_MODE else self.mode
        return f"{stage}_{self.name.removesuffix('_mean')}"


@dataclass(frozen=True)
class BestMetric:
    """The best value of the metric by which a run is judged."""

    label: str
    value: float
    step: int
    last: float | None
    """The last value, for comparison; None where it was not finite."""
    direction: Mode
    mode: str
    """The mode in which it was logged, such as `val`."""
    name: str
    """The name of its column, such as `loss`."""


def best_metric(run: "Run") -> BestMetric | None:
    """The best value of the metric by which a run is judged; None if it has none, or no value of it is finite.

    Args:
        run: The run, as `trackside.open_run` gives it.
    """
    return best_metric_of(run.config, run.metrics)


def best_metric_of(config: Mapping[str, Any], metrics: Mapping[str, MetricTable]) -> BestMetric | None:
    """The same, given what a run wrote.

    Args:
        config: Its configs.
        metrics: Its metrics by mode.
    """
    monitored = choose_metric(config, {mode: table.names for mode, table in metrics.items()})
    if monitored is None:
        return None
    table = metrics[monitored.mode]
    rows = table.present(monitored.name)
    return best_of(monitored, table.step[rows], table[monitored.name][rows])


def choose_metric(config: Mapping[str, Any], names_by_mode: Mapping[str, list[str]]) -> Monitored | None:
    """By which metric to judge a run; None if it has none.

    Args:
        config: The run's configs.
        names_by_mode: The names of its metrics by mode.
    """
    for monitor in _monitors(config):
        stage = monitor.stage_where(validates="val" in names_by_mode)
        for mode in (TRAIN_EPOCH_MODE, "train") if stage == "train" else ("val",):
            if (name := monitor.find_name(names_by_mode.get(mode, []), stage)) is not None:
                return Monitored(mode, name, monitor.mode)
    for mode in ("val", "train"):
        names = [name for name in names_by_mode.get(mode, []) if is_result(name)]
        for name in (*(loss for loss in ("loss", "loss_mean") if loss in names), *names):
            return Monitored(mode, name, direction_of(name))
    return None


def best_of(monitored: Monitored, steps: np.ndarray, values: np.ndarray) -> BestMetric | None:
    """The best of a metric's values; None if none is finite.

    Args:
        monitored: The metric.
        steps: The step of each value.
        values: The values.
    """
    if not np.isfinite(values).any():
        return None
    chosen = np.argmin(Monitor(monitored.name, monitored.direction).rank_all(values))
    last = float(values[-1])
    return BestMetric(
        monitored.label,
        float(values[chosen]),
        int(steps[chosen]),
        last if np.isfinite(last) else None,
        monitored.direction,
        monitored.mode,
        monitored.name,
    )


def _monitors(config: Mapping[str, Any]) -> Iterator[Monitor]:
    """What callbacks monitor, those that keep checkpoints first."""
    trainer = config.get("trainer")
    written = trainer.get("callbacks") if isinstance(trainer, Mapping) else None
    callbacks = [one for one in written if isinstance(one, Mapping)] if isinstance(written, list) else []
    for callback in sorted(callbacks, key=lambda one: "Checkpoint" not in str(one.get("__class__"))):
        if isinstance(name := callback.get("monitor"), str) and name:
            yield Monitor(name, "max" if callback.get("mode") == "max" else "min")


def is_result(name: str) -> bool:
    """Whether a metric says how good the model is; a learning rate, a time or a norm does not."""
    return name.removesuffix("_mean") not in _NOT_RESULTS and not name.startswith(("grad_norm", "param_norm"))
