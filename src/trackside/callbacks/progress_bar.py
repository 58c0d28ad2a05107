"""Asks for the trainer's progress bar."""

from dataclasses import dataclass
from typing import Any

from trackside.callbacks.base import Callback, CallbackConfig


@dataclass
class ProgressBarConfig(CallbackConfig):
    """Config of the progress bar; there is nothing to set."""

    def create(self, trainer: Any, data_module: Any = None) -> "ProgressBarCallback":
        """Build the callback."""
        return ProgressBarCallback(self, trainer, data_module)


class ProgressBarCallback(Callback):
    """Shows the trainer's progress bar, also where its config has switched it off. There is never more than one."""

    shows_progress = True

    def __init__(self, config: ProgressBarConfig | None = None, trainer: Any = None, data_module: Any = None):
        super().__init__(ProgressBarConfig() if config is None else config, trainer, data_module)
