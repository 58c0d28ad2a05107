"""Sees before the first step that what callbacks monitor will be there."""

from collections.abc import Iterable, Mapping
from typing import Any

from trackside.callbacks import Callback, EarlyStopping, EarlyStoppingConfig, ModelCheckpoint
from trackside.callbacks.model_checkpoint import CheckpointConfig
from trackside.monitor import Monitor
from trackside.trainer.overridable import Overridable

_HOOKS = ("on_validation_epoch_end", "on_filtered_validation_epoch_end")
_KNOWN = (Callback, ModelCheckpoint, EarlyStopping, Overridable)
"""Whose hooks add no metrics."""


def monitors_of(callbacks: Iterable[Callback]) -> list[Monitor]:
    """What callbacks choose and stop by."""
    configs = [callback.config for callback in callbacks]
    monitors = [one.build_monitor() for one in configs if isinstance(one, CheckpointConfig | EarlyStoppingConfig)]
    return [monitor for monitor in monitors if monitor is not None]


def may_add_metrics(hook_owner: Any) -> bool:
    """Whether a trainer or callback has a hook of its own that may add metrics to those of a validation."""
    known = {getattr(one, name) for one in _KNOWN for name in _HOOKS if hasattr(one, name)}
    return any(getattr(type(hook_owner), name, None) not in {None, *known} for name in _HOOKS)


def check_monitors(
    callbacks: Iterable[Callback], trainer: Overridable, validates: bool, metrics: Mapping[str, float]
) -> None:
    """Raise if a callback monitors a metric that no validation will have.

    Args:
        callbacks: The callbacks.
        trainer: The trainer, whose hooks may add metrics.
        validates: Whether the training validates.
        metrics: Those of a validation, as its row will have them.

    Raises:
        ConfigError: One does; the message has the names that there are.
    """
    callbacks = list(callbacks)
    if any(may_add_metrics(one) for one in (trainer, *callbacks)):
        return
    for monitor in monitors_of(callbacks):
        if monitor.stage_where(validates) == "val":
            monitor.read(metrics, "val")
