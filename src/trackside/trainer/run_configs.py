"""The three configs of a run: written with it, read back with it, and compared when it resumes."""

import dataclasses
import logging
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from trackside.callbacks import Callback
from trackside.config import ConfigDict
from trackside.errors import CheckpointError, ConfigError
from trackside.logger import Logger, LoggerConfig
from trackside.logger.redact import redact
from trackside.run_layout import CHECKPOINTS_FOLDER
from trackside.text import count
from trackside.trainer.checkpoint_store import CheckpointStore
from trackside.trainer.checkpoints import choose_step, find_checkpoints
from trackside.trainer.models import ModelConfig
from trackside.trainer.optimizer import OptimizerConfig
from trackside.trainer.trainer_config import TrainerConfig

LOGGER = logging.getLogger(__name__)

Config = TypeVar("Config", bound=ConfigDict)

_NAMES = ("trainer", "model", "optimizer")
_MAX_CHANGES = 20
# What a resumed run may well have changed without being another training.
_IRRELEVANT = (
    "trainer.resume",
    "trainer.enable_progress_bar",
    "trainer.logger.",
    "trainer.watchdog_timeout_s",
    "trainer.silence_findings",
)


@dataclass(frozen=True)
class RunConfigs:
    """How a run trains, which model, and by which optimizer."""

    trainer: TrainerConfig
    model: ModelConfig | None
    """None for a model that was given as an object."""
    optimizer: OptimizerConfig | None
    """None for an optimizer that was given as an object."""
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of objects that were given in place of configs."""

    @classmethod
    def of_checkpoint(cls, path: pathlib.Path) -> tuple["RunConfigs", CheckpointStore, int]:
        """Read the configs that were saved with a run.

        Args:
            path: The run's folder, its folder of checkpoints, or that of one step.

        Returns:
            The configs, with the logger where the run is now; the checkpoints; and the step to load, verified.
        """
        root, named_step = find_checkpoints(path)
        store = CheckpointStore(root)
        step = choose_step(store, named_step, load_best=False)
        saved = store.record(step)["configs"]
        for name in _NAMES:
            if name not in saved:
                raise CheckpointError(
                    f"checkpoint {root}: the {name} config was not saved, since it could not be written or was given "
                    "as an object; build the trainer yourself and use load_pretrained_model"
                )
        trainer = _read_saved(TrainerConfig, saved["trainer"])
        trainer.logger = _logger_where_it_is(trainer.logger, root)
        model = _read_saved(ModelConfig, saved["model"])
        return cls(trainer, model, _read_saved(OptimizerConfig, saved["optimizer"])), store, step

    def to_plain(self) -> dict[str, Any]:
        """As plain values without secrets. One that cannot be written is left out, with a warning."""
        plain: dict[str, Any] = {"given": dict(self.given)} if self.given else {}
        for name, config in self._by_name().items():
            try:
                plain[name] = redact(config.to_dict())
            except ConfigError as error:  # say, a model class that was defined in a function
                LOGGER.warning("the %s config is not saved, so load_from_checkpoint will not work: %s", name, error)
        return plain

    def log_to(self, logger: Logger) -> None:
        """Log the configs. One that cannot be written is left out, with a warning."""
        if self.given:
            logger.log_config({"given": dict(self.given)})
        for name, config in self._by_name().items():
            try:
                logger.log_config({name: config})
            except ConfigError as error:  # say, a model config of a class that cannot be written
                LOGGER.warning(
                    "the %s config is not saved, so the run cannot be loaded from its folder: %s", name, error
                )

    def changes_since(self, saved: Mapping[str, Any]) -> list[str]:
        """What is different from the configs that a run was saved with, a line for each setting."""
        now, then = dict(_flat(self.to_plain())), dict(_flat(saved))
        return [
            f"{name}: {then.get(name, 'absent')!r} -> {now.get(name, 'absent')!r}"
            for name in sorted(now.keys() | then.keys())
            if now.get(name) != then.get(name) and not name.startswith(_IRRELEVANT)
        ]

    def log_changes_since(self, saved: Mapping[str, Any]) -> None:
        """Say what is different from the configs that a resumed run was saved with."""
        if changed := self.changes_since(saved):
            shown = "\n  ".join([*changed[:_MAX_CHANGES], *(["..."] if len(changed) > _MAX_CHANGES else [])])
            LOGGER.warning("the run resumes with %s changed:\n  %s", count(len(changed), "setting"), shown)

    def explain_misfit(self, record: Mapping[str, Any], callbacks: Iterable[str]) -> str:
        """Why a saved training may not fit: what was changed since, callbacks first, which may extend the optimizer.

        Args:
            record: The record of the saved step.
            callbacks: The callbacks of the training that was to resume, as their states are named.
        """
        now, then = set(callbacks), set(record["callbacks"])
        changed = [f"callback {name.rpartition('-')[0]} was added" for name in sorted(now - then)]
        changed += [f"callback {name.rpartition('-')[0]} was removed" for name in sorted(then - now)]
        changed += [one for one in self.changes_since(record["configs"]) if not one.startswith("trainer.callbacks")]
        shown = "\n  ".join(changed[:_MAX_CHANGES])
        return f"since it was saved, this has changed:\n  {shown}" if changed else "the configs are the same as then"

    def _by_name(self) -> dict[str, ConfigDict]:
        callbacks = [one.config if isinstance(one, Callback) else one for one in self.trainer.callbacks]
        trainer = dataclasses.replace(self.trainer, callbacks=callbacks)
        configs = {"trainer": trainer, "model": self.model, "optimizer": self.optimizer}
        return {name: config for name, config in configs.items() if config is not None}


def _read_saved(config_class: type[Config], data: Any) -> Config:
    """A config from a checkpoint. The version that saved it may have had other fields, which cause a warning only."""
    return ConfigDict.from_dict(config_class, data, strict_classname_parsing=False, ignore_extensive_attributes=True)


def _flat(plain: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested dicts and lists, by their paths."""
    items = plain.items() if isinstance(plain, Mapping) else enumerate(plain) if isinstance(plain, list) else None
    if not items:
        yield path, plain
        return
    for name, value in items:
        yield from _flat(value, f"{path}.{name}" if path else str(name))


def _logger_where_it_is(config: LoggerConfig | None, checkpoints: pathlib.Path) -> LoggerConfig | None:
    """A run's logger config, with its folder where it is now."""
    if config is None or config.log_path is None or checkpoints.name != CHECKPOINTS_FOLDER:
        return config
    return dataclasses.replace(config, log_path=checkpoints.parent)
