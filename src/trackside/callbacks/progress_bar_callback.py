"""Asks for the trainer's progress bar."""

from dataclasses import dataclass

from trackside.callbacks.callback import Callback, CallbackConfig


@dataclass
class ProgressBarConfig(CallbackConfig):
    """Config of the progress bar; there is nothing to set."""


class ProgressBarCallback(Callback, config=ProgressBarConfig):
    """Shows the trainer's progress bar, also where its config has switched it off. There is never more than one."""
