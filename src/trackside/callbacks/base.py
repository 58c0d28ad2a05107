"""Callbacks: code that runs at fixed points of a training, beside the trainer's own hooks."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trackside.config import ConfigDict
from trackside.profiling.ledger import CALLBACK, Ledger
from trackside.schedule import Plan

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
    on_error: Literal["raise", "warn"] = field(default="raise", kw_only=True)
    """Whether an error in the callback stops the run, or is logged once and the callback left alone from then on."""

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

    plan: Plan | None = None
    """The steps after which the callback wants to act before the next one begins: see `on_boundary`."""
    hears_steps: bool | None = None
    """Whether the loop calls `on_training_step`; None if it is to find out whether that is overridden."""
    shows_progress: bool = False
    """Whether the callback asks for the trainer's progress bar."""

    def __init__(self, config: CallbackConfig, trainer: Any = None, data_module: Any = None):
        self.config = config
        self.trainer = trainer
        self.data_module = data_module

    @property
    def directory(self) -> Path | None:
        """Where the callback keeps checkpoints of the training, if it does."""
        return None

    def choose(self, metrics: Mapping[int, Mapping[str, float]]) -> Iterable[int]:
        """Which of the saved steps to keep, by their metrics; all, for a callback that has no opinion."""
        return metrics.keys()

    def rank(self, metrics: Mapping[str, float]) -> float | None:
        """How good a validation is by what the callback watches, lower being better; None if it watches nothing."""
        return None

    def evaluation_params(self, state: Any) -> Any:
        """The parameters that evaluation shall use instead of the state's; None to leave it at those."""
        return None

    def bind(self, trainer: Any) -> None:
        """Take over the trainer, for a callback that was made without one."""
        self.trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """What has to survive a restart: anything that JSON can hold."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""

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

    def on_boundary(self, epoch_idx: int, step_idx: int) -> None:
        """Called between two steps where `plan` is due: all steps up to `step_idx` have completed, none has begun."""

    def on_settled(self, epoch_idx: int, step_idx: int) -> None:
        """Called when all other hooks of a boundary, a validation or an epoch's end have run.

        State, position and metrics of the training are complete and may be saved.
        """

    def on_test_epoch_start(self, epoch_idx: int) -> None:
        """Called before a test."""

    def on_test_epoch_end(self, test_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Called after a test."""

    def finalize(self, status: str) -> None:
        """Called once when the training is over, however it ended."""


def _is_due(cadence: int, index: int) -> bool:
    return cadence > 0 and index % cadence == 0


class CallbackList:
    """Several callbacks, called in order.

    Args:
        callbacks: The callbacks.
    """

    def __init__(self, callbacks: Iterable[Callback] = ()):
        self.callbacks = list(callbacks)
        self.ledger = Ledger()
        """Where the time of each callback is kept, once it is started."""
        self._failed: list[Callback] = []
        self._on_step = [callback for callback in self.callbacks if _hears_steps(callback)]

    @property
    def wants_steps(self) -> bool:
        """Whether any callback has to hear of each step."""
        return bool(self._on_step)

    def call(self, hook: str, *args: Any) -> None:
        """Call a hook of every callback. An error names the callback that it came from."""
        self._call(self._on_step if hook == "on_training_step" else self.callbacks, hook, *args)

    def _call(self, callbacks: list[Callback], hook: str, *args: Any) -> None:
        for callback in callbacks:
            if callback in self._failed:
                continue
            before = self.ledger.switch(f"{CALLBACK}{type(callback).__name__}")
            try:
                getattr(callback, hook)(*args)
            except Exception as error:
                where = f"{type(callback).__name__}.{hook}"
                if callback.config.on_error == "raise":
                    error.add_note(f"raised in {where}")
                    raise
                self._failed.append(callback)
                LOGGER.exception("%s failed; training goes on without this callback", where)
            finally:
                self.ledger.switch(before)

    def call_boundary(self, epoch_idx: int, step_idx: int) -> None:
        """Call `on_boundary` of those that planned this step."""
        due = [callback for callback in self.callbacks if callback.plan is not None and callback.plan.is_due(step_idx)]
        self._call(due, "on_boundary", epoch_idx, step_idx)

    def evaluation_params(self, state: Any) -> Any:
        """The parameters that evaluation shall use by the first callback that has any; None for the state's own."""
        offered = (callback.evaluation_params(state) for callback in self.callbacks)
        return next((params for params in offered if params is not None), None)

    def rank(self, metrics: Mapping[str, float]) -> float | None:
        """How good a validation is by the first callback that has an opinion, lower being better."""
        ranks = (callback.rank(metrics) for callback in self.callbacks)
        return next((rank for rank in ranks if rank is not None), None)

    @property
    def plans(self) -> list[Plan]:
        """The callbacks' plans."""
        return [callback.plan for callback in self.callbacks if callback.plan is not None]

    def state_dict(self) -> dict[str, Any]:
        """The states of all callbacks, by class and order."""
        return {name: callback.state_dict() for name, callback in self._named()}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Give saved states back to the callbacks of the same class and order."""
        for name, callback in self._named():
            if name in states:
                callback.load_state_dict(states[name])

    def _named(self) -> Iterator[tuple[str, Callback]]:
        counts: Counter[str] = Counter()
        for callback in self.callbacks:
            name = type(callback).__name__
            yield f"{name}-{counts[name]}", callback
            counts[name] += 1

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


def _hears_steps(callback: Callback) -> bool:
    """Whether a callback does anything after a step."""
    if callback.hears_steps is not None:
        return callback.hears_steps
    is_filtered = _overrides(callback, "on_filtered_training_step") and callback.config.every_n_steps > 0
    return _overrides(callback, "on_training_step") or is_filtered


def _overrides(callback: Callback, hook: str) -> bool:
    return getattr(type(callback), hook) is not getattr(Callback, hook)
