"""Sees before the first step that what callbacks monitor will be there."""

from collections.abc import Collection, Iterable
from typing import Any

from trackside.callbacks import Callback, EarlyStoppingConfig
from trackside.callbacks.model_checkpoint import CheckpointConfig
from trackside.metrics import MetricLayout
from trackside.monitor import Monitor, Stage
from trackside.trainer.overridable import Overridable

_HOOKS = {
    "train": ("on_training_epoch_end", "on_filtered_training_epoch_end"),
    "val": ("on_validation_epoch_end", "on_filtered_validation_epoch_end"),
}
_OWN_PACKAGE = __name__.partition(".")[0]
_EPOCH_TIMES = ("epoch_time", "train_time")
"""What the row of an epoch of training holds in addition to the metrics of its steps."""


def monitors_of(callbacks: Iterable[Callback]) -> list[Monitor]:
    """What callbacks choose and stop by."""
    configs = [callback.config for callback in callbacks]
    monitors = [one.build_monitor() for one in configs if isinstance(one, CheckpointConfig | EarlyStoppingConfig)]
    return [monitor for monitor in monitors if monitor is not None]


def may_add_metrics(hook_owner: Any, stage: Stage) -> bool:
    """Whether a trainer or callback has a hook that may add metrics to a stage. Those of trackside itself add none."""
    hooks = [getattr(hook_owner, name, None) for name in _HOOKS[stage]]
    packages = {str(getattr(hook, "__module__", "")).partition(".")[0] for hook in hooks if hook is not None}
    return not packages <= {_OWN_PACKAGE}


def epoch_metric_names(layout: MetricLayout) -> list[str]:
    """The names in the row of an epoch of training, as long as nobody adds to them."""
    return [*_EPOCH_TIMES, *(name for outputs in layout.outputs.values() for name in outputs.names)]


def check_monitors(
    callbacks: Iterable[Callback], trainer: Overridable, validates: bool, stage: Stage, names: Collection[str]
) -> None:
    """Raise if a callback monitors a metric that its stage will not have.

    Args:
        callbacks: The callbacks.
        trainer: The trainer, whose hooks may add metrics.
        validates: Whether the training validates.
        stage: The stage to check.
        names: The metrics that its rows will have.

    Raises:
        ConfigError: One does; the message has the names that there are.
    """
    callbacks = list(callbacks)
    if any(may_add_metrics(one, stage) for one in (trainer, *callbacks)):
        return
    for monitor in monitors_of(callbacks):
        if monitor.stage_where(validates) == stage and monitor.find_name(names, stage) is None:
            raise monitor.not_found(names, stage)
