"""The weights of a run that is in a trainer's folder, for looking at it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trackside.callbacks import CheckpointConfig, ModelCheckpoint
from trackside.errors import CheckpointError
from trackside.trainer.saved_training import MisfitError
from trackside.trainer.trainer import LOGGER, TrainerModule


def load_weights_of_run(module: TrainerModule, run: Path, callbacks: Iterable[Any]) -> None:
    """Put the weights that a run saved last in place of those of a trainer. If it saved none, the log says so.

    Args:
        module: The trainer.
        run: The folder of the run.
        callbacks: The callbacks of the trainer, or their configs, of which one may save to another folder.
    """
    configs = [one.config if isinstance(one, ModelCheckpoint) else one for one in callbacks]
    named = next((one.dirpath for one in configs if isinstance(one, CheckpointConfig) and one.dirpath), None)
    try:
        step = _load(module, run if named is None else Path(named))
    except CheckpointError as error:
        LOGGER.warning("%s holds a run, but the model is evaluated as it was given: %s", run, error)
    else:
        LOGGER.info("the model is that of step %d of %s", step, run)


def _load(module: TrainerModule, folder: Path) -> int:
    """Load the last step. The optimizer's state may hold an average to evaluate, but that of another may not fit."""
    try:
        return module.load_pretrained_model(folder)
    except MisfitError:
        return module.load_pretrained_model(folder, load_optimizer=False)
