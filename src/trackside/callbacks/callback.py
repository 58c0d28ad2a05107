"""Callbacks: code that runs at fixed points of a training, next to the trainer's own hooks."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from trackside.callbacks.trainer_view import TrainerView
from trackside.config import ConfigDict
from trackside.config.declared_types import check_value
from trackside.config.wording import shown
from trackside.errors import ConfigError
from trackside.processes import Processes
from trackside.profiling.ledger_totals import CALLBACK
from trackside.schedule import NEVER, Plan, check_interval

Hook = TypeVar("Hook", bound=Callable[..., Any])


@dataclass
class CallbackConfig(ConfigDict):
    """What every callback can be told."""

    every_n_epochs: int = field(default=1, kw_only=True)
    """Run the `on_filtered_*` epoch hooks every N epochs; -1 disables them."""
    every_n_steps: int = field(default=-1, kw_only=True)
    """Run `on_filtered_training_step` every N steps; -1 disables it."""
    main_process_only: bool = field(default=False, kw_only=True)
    """Run on the main process only."""
    on_error: Literal["raise", "warn"] = field(default="raise", kw_only=True)
    """Whether an error in the callback stops the run, or is logged once and the callback left out from then on."""

    callback_class: ClassVar["type[Callback] | None"] = None
    """What `create` builds."""

    def __post_init__(self) -> None:
        self.check_cadence()

    def check_cadence(self) -> None:
        """Raise if the callback would be called at no step or epoch, without that having been asked for."""
        for name in ("every_n_epochs", "every_n_steps"):
            check_interval(f"{type(self).__name__}.{name}", getattr(self, name))

    def create(self, trainer: TrainerView, data_module: Any = None) -> "Callback":
        """Build the callback, bound to a trainer."""
        if self.callback_class is None:
            raise NotImplementedError(
                f"{type(self).__name__} does not say which callback it builds; define `create`, or name the config in "
                f"the class statement of the callback: `class Mine(Callback, config={type(self).__name__})`"
            )
        return self.callback_class(self, trainer, data_module)

    def check_processes(self, processes: Processes) -> None:
        """Raise if the callback cannot work with the processes that train together."""


def default_hook(hook: Hook) -> Hook:
    """Mark the hook of a base class that does nothing by itself, so that the loop calls only those that override it."""
    hook.is_default_hook = True  # type: ignore[attr-defined]
    return hook


class Callback:
    """Base of all callbacks. Override what is needed; hooks that are not overridden cost nothing.

    Epoch and step indices start at 1. Metrics that a hook adds to the dict that it is given are logged as well.
    `class Mine(Callback, config=MyConfig)` lets `MyConfig.create` build it.

    Args:
        config: The callback's config; a default one if left out.
        trainer: The trainer, if it is known already.
        data_module: The loaders, if they are known already.
    """

    config_class: ClassVar[type[CallbackConfig]] = CallbackConfig
    described_as: str = ""
    """What messages call the callback; the name of its class if empty."""
    _trainer: TrainerView | None = None
    acts_on_steps: ClassVar[bool] = True
    """Whether `on_training_step` may look at the state or ask for a stop, so that it is called before many more steps
    are made. With False, steps may be fused by default, and it is called for several of them at once."""
    plan: Plan | None = None
    """The steps after which the callback acts before the next one begins, where they are known: see `on_boundary`."""

    def __init_subclass__(cls, config: type[CallbackConfig] | None = None, **kwargs: Any) -> None:
        """Tie a callback to its config."""
        super().__init_subclass__(**kwargs)
        if config is not None:
            cls.config_class = config
            config.callback_class = cls

    if not TYPE_CHECKING:  # type checkers find wrong arguments by themselves, unless they see this

        def __new__(cls, *args: Any, **kwargs: Any) -> Self:
            """Refuse what belongs into the config, with what to write."""
            _check_arguments(cls, args, kwargs)
            return super().__new__(cls)

    def __init__(
        self, config: CallbackConfig | None = None, trainer: TrainerView | None = None, data_module: Any = None
    ):
        self.config: Any = self.config_class() if config is None else config
        self.data_module = data_module
        self._trainer = trainer

    @property
    def trainer(self) -> TrainerView:
        """The trainer that the callback is bound to."""
        if self._trainer is None:
            raise ConfigError(
                f"{type(self).__name__} is not bound to a trainer yet; pass it to trainer.fit(callbacks=[...])"
            )
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: TrainerView | None) -> None:
        self._trainer = trainer

    @property
    def is_bound(self) -> bool:
        """Whether the callback has a trainer."""
        return self._trainer is not None

    @property
    def ledger_part(self) -> str:
        """The part of the ledger that the callback's time is booked under."""
        return f"{CALLBACK}{type(self).__name__}"

    def bind(self, trainer: TrainerView) -> None:
        """Take over the trainer, for a callback that was made without one. After another trainer, it begins again."""
        if self._trainer is not None and self._trainer is not trainer:
            self.forget_training()
        self._trainer = trainer

    def forget_training(self) -> None:
        """Forget what belongs to one training: the callback is about to serve another trainer."""

    def next_boundary(self, step_idx: int) -> float:
        """The first step after `step_idx` after which the callback may have to act before the next one begins."""
        return NEVER if self.plan is None else self.plan.next_boundary(step_idx)

    def decide(self, step_idx: int) -> bool:
        """Whether the callback acts now, after `step_idx`: then `on_boundary` is called.

        Asked exactly once at every boundary, on every process, before any callback acts. A callback may ask others
        here: the clock, a file, the other processes.
        """
        return self.plan is not None and self.plan.is_due(step_idx)

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

    @default_hook
    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        """Called after each step, as soon as its metrics are known; by default at the config's cadence."""
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
        """Called between two steps where `decide` said so: steps up to `step_idx` have completed, none has begun."""

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


def hears_steps(callback: Callback) -> bool:
    """Whether a callback does anything after a step."""
    hook = type(callback).on_training_step
    if not getattr(hook, "is_default_hook", False):
        return True
    overrides_filtered = type(callback).on_filtered_training_step is not Callback.on_filtered_training_step
    return hook is Callback.on_training_step and overrides_filtered and callback.config.every_n_steps > 0


def _check_arguments(cls: type[Callback], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise if a callback that takes a config is given something else for it, or fields of the config."""
    config_class, taken = cls.config_class, list(inspect.signature(cls.__init__).parameters)[1:]
    if taken[:1] != ["config"] or not cls.__init__.__module__.startswith("trackside."):  # others take what they like
        return
    fields = [name for name in kwargs if name not in taken and name in config_class.__dataclass_fields__]
    if fields:
        written = ", ".join(f"{name}={shown(kwargs[name])}" for name in fields)
        raise ConfigError(
            f"{fields[0]}: {cls.__name__} takes it in its config; write "
            f"{cls.__name__}({config_class.__name__}({written}))"
        )
    config = args[0] if args else kwargs.get("config")
    try:
        check_value(config_class | None, config, "config")
    except ConfigError as error:
        raise ConfigError(f"{error}; write {cls.__name__}({config_class.__name__}(...))") from None
