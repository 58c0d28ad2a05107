"""The trainer's own hooks, for subclasses, and how they are called together with the callbacks'."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trackside.callbacks import CallbackList
from trackside.schedule import Plan


class TrainerHooks:
    """Methods that a trainer may override. Each is called before the callbacks' method of the same name."""

    def on_training_start(self) -> None:
        """Called before training starts, for additional set-up."""

    def on_training_end(self) -> None:
        """Called after training has finished."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Called at the start of each training epoch.

        Args:
            epoch_idx: Index of the epoch, from 1.
        """

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Called at the end of each training epoch.

        Args:
            train_metrics: The epoch's metrics. What is added here is logged as well.
            epoch_idx: Index of the epoch.
        """

    def on_validation_epoch_start(self, epoch_idx: int, step_idx: int) -> None:
        """Called at the start of each validation.

        Args:
            epoch_idx: Index of the training epoch.
            step_idx: Index of the training step.
        """

    def on_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        """Called at the end of each validation.

        Args:
            eval_metrics: The metrics. What is added here is logged as well.
            epoch_idx: Index of the training epoch.
            step_idx: Index of the training step.
        """

    def on_test_epoch_start(self, epoch_idx: int) -> None:
        """Called at the start of each test.

        Args:
            epoch_idx: Index of the training epoch.
        """

    def on_test_epoch_end(self, test_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Called at the end of each test.

        Args:
            test_metrics: The metrics. What is added here is logged as well.
            epoch_idx: Index of the training epoch.
        """


@dataclass(frozen=True)
class Hooks:
    """The trainer's hooks and its callbacks', called in this order."""

    trainer: TrainerHooks
    callbacks: CallbackList
    run_validation: Callable[[int], dict[str, float]] | None = None

    @property
    def wants_steps(self) -> bool:
        """Whether anybody has to hear of each step."""
        return self.callbacks.wants_steps

    def validate(self, epoch: int, /) -> dict[str, float]:
        """Evaluate on the validation set, with hooks and log row."""
        return self.run_validation(epoch) if self.run_validation is not None else {}

    @property
    def plans(self) -> list[Plan]:
        """The steps that callbacks have planned to act after."""
        return self.callbacks.plans

    def rank(self, metrics: dict[str, float]) -> float | None:
        """How good a validation is, lower being better; None if no callback says."""
        return self.callbacks.rank(metrics)

    def call(self, hook: str, *args: Any) -> None:
        """Call a hook of the trainer, then of its callbacks."""
        if hook not in ("on_training_step", "on_settled"):  # callbacks only
            getattr(self.trainer, hook)(*args)
        self.callbacks.call(hook, *args)

    def call_boundary(self, epoch_idx: int, step_idx: int) -> None:
        """Let the callbacks act that planned to act after this step."""
        self.callbacks.call_boundary(epoch_idx, step_idx)
