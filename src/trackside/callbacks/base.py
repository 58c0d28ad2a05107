"""Callbacks: code that runs at fixed points of a training, beside the trainer's own hooks."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trackside.config import ConfigDict

LOGGER = logging.getLogger(__name__)


@dataclass
class CallbackConfig(ConfigDict):
    """What every callback can be told."""

    every_n_epochs: int = 1
    """Call the filtered epoch hooks after every so many epochs; -1 for never."""
    every_n_steps: int = -1
    """Call the filtered step hook after every so many steps; -1 for never."""
    main_process_only: bool = False
    """Run on the main process only."""

    def create(self, trainer: Any, data_module: Any = None) -> "Callback":
        """Build the callback, bound to a trainer."""
        raise NotImplementedError(f"{type(self).__name__} does not say which callback it builds; define `create`")


class Callback:
    """Base of all callbacks. Override what is needed; hooks that are not overridden cost nothing.

    Epoch and step indices start at 1. Metrics that a hook adds to the dict that it is given are logged as well.

    Args:
        config: The callback's config.
        trainer: The trainer, if it is known already.
        data_module: The loaders, if they are known already.
    """

    def __init__(self, config: CallbackConfig, trainer: Any = None, data_module: Any = None):
        self.config = config
        self.trainer = trainer
        self.data_module = data_module

    def set_dataset(self, data_module: Any) -> None:
        """Take over new loaders."""
        self.data_module = data_module

    def on_training_start(self) -> None:
        """Called before the first step."""

    def on_training_end(self) -> None:
        """Called after the last step."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Called before the first step of an epoch; by default at the config's cadence, `on_filtered_...`."""
        if _is_due(self.config.every_n_epochs, epoch_idx):
            self.on_filtered_training_epoch_start(epoch_idx)

    def on_filtered_training_epoch_start(self, epoch_idx: int) -> None:
        """Called before every `every_n_epochs`-th epoch."""

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Called after the last step of an epoch; by default at the config's cadence, `on_filtered_...`."""
        if _is_due(self.config.every_n_epochs, epoch_idx):
            self.on_filtered_training_epoch_end(train_metrics, epoch_idx)

    def on_filtered_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Called after every `every_n_epochs` epochs."""

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        """Called after each step, as soon as its metrics are there; by default at the config's cadence."""
        if _is_due(self.config.every_n_steps, step_idx):
            self.on_filtered_training_step(step_metrics, epoch_idx, step_idx)

    def on_filtered_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        """Called after every `every_n_steps` steps."""

    def on_validation_epoch_start(self, epoch_idx: int, step_idx: int) -> None:
        """Called before a validation; by default at the config's cadence, `on_filtered_...`."""
        if _is_due(self.config.every_n_epochs, epoch_idx):
            self.on_filtered_validation_epoch_start(epoch_idx, step_idx)

    def on_filtered_validation_epoch_start(self, epoch_idx: int, step_idx: int) -> None:
        """Called before the validations of every `every_n_epochs` epochs."""

    def on_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        """Called after a validation; by default at the config's cadence, `on_filtered_...`."""
        if _is_due(self.config.every_n_epochs, epoch_idx):
            self.on_filtered_validation_epoch_end(eval_metrics, epoch_idx, step_idx)

    def on_filtered_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        """Called after the validations of every `every_n_epochs` epochs."""

    def on_test_epoch_start(self, epoch_idx: int) -> None:
        """Called before a test."""

    def on_test_epoch_end(self, test_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Called after a test."""

    def finalize(self, status: str) -> None:
        """Called once when the training is over, however it ended."""


def _is_due(cadence: int, index: int) -> bool:
    return cadence > 0 and index % cadence == 0


_STEP_HOOKS = ("on_training_step", "on_filtered_training_step")


class CallbackList:
    """Several callbacks, called in order.

    Args:
        callbacks: The callbacks.
    """

    def __init__(self, callbacks: Iterable[Callback] = ()):
        self.callbacks = list(callbacks)
        self._on_step = [callback for callback in self.callbacks if _overrides(callback, _STEP_HOOKS)]

    @property
    def wants_steps(self) -> bool:
        """Whether any callback has to hear of each step."""
        return bool(self._on_step)

    def call(self, hook: str, *args: Any) -> None:
        """Call a hook of every callback. An error names the callback that it came from."""
        for callback in self._on_step if hook == "on_training_step" else self.callbacks:
            try:
                getattr(callback, hook)(*args)
            except Exception as error:
                error.add_note(f"raised in {type(callback).__name__}.{hook}")
                raise

    def finalize(self, status: str) -> None:
        """Close every callback; one that fails is reported and does not keep the others from closing."""
        for callback in self.callbacks:
            try:
                callback.finalize(status)
            except Exception:
                LOGGER.exception("%s failed to close", type(callback).__name__)

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks)

    def __len__(self) -> int:
        return len(self.callbacks)

    def __getitem__(self, index: int) -> Callback:
        return self.callbacks[index]


def _overrides(callback: Callback, hooks: Iterable[str]) -> bool:
    return any(getattr(type(callback), hook) is not getattr(Callback, hook) for hook in hooks)
