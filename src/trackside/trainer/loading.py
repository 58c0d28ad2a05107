"""Loading a trainer's state from checkpoints: those of its own run, or those of another."""

import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from trackside.errors import CheckpointError
from trackside.logger.run_log import without_opening_runs
from trackside.profiling.ledger_totals import RESTORING
from trackside.run_layout import CHECKPOINTS_FOLDER
from trackside.trainer import saved_training
from trackside.trainer.batch import slice_batch
from trackside.trainer.checkpoint_store import CheckpointStore
from trackside.trainer.checkpoints import find_checkpoints
from trackside.trainer.loaders import decode_position
from trackside.trainer.run_configs import RunConfigs

if TYPE_CHECKING:
    from trackside.trainer.trainer import TrainerModule

LOGGER = logging.getLogger(__name__)

Built = TypeVar("Built", bound="TrainerModule")


def load_own(trainer: "TrainerModule", step_idx: int, raise_if_not_found: bool) -> None:
    """Load the training from the run's folder.

    Args:
        trainer: The trainer.
        step_idx: The step; -1 for the latest that is not damaged.
        raise_if_not_found: Whether it is an error if there is none; otherwise a warning.
    """
    trainer.finish_saving()
    try:
        with trainer.ledger.spend(RESTORING):
            store = store_to_load(trainer)
            step = trainer.checkpoints.choose(store, step_idx)
            trainer.checkpoints.load(store, step, trainer.engine, trainer.progress, _has_optimizer(trainer))
    except CheckpointError as error:
        if raise_if_not_found:
            raise
        LOGGER.warning("no model was loaded: %s", error)


def store_to_load(trainer: "TrainerModule") -> CheckpointStore:
    """The run's checkpoints; before it has any, those of the folder that the config names, if that was taken."""
    own, named = trainer.checkpoints.store(None), trainer.folder_of_config
    if named is None or named == trainer.logger.log_path or own.steps():
        return own
    return trainer.checkpoints.store(named / CHECKPOINTS_FOLDER)


def load_pretrained(
    trainer: "TrainerModule",
    path: pathlib.Path,
    step_idx: int,
    load_best: bool,
    load_optimizer: bool,
    loaders: Sequence[Any],
    deletes_first: bool,
) -> int:
    """Load a model from a folder of checkpoints, and say which step it was.

    Args:
        trainer: The trainer.
        path: The folder, that of a run, or that of one step.
        step_idx: The step; -1 for the latest that is not damaged, or the one that the path names.
        load_best: Whether to load the best step instead.
        load_optimizer: Whether to load the optimizer's state too, if the trainer has one.
        loaders: Those for training, validation and test, to be put where they were; None for one that is not wanted.
        deletes_first: Whether to free the current parameters first.
    """
    trainer.finish_saving()
    with trainer.ledger.spend(RESTORING):
        root, named_step = find_checkpoints(path)
        store = trainer.checkpoints.store(root)
        step = trainer.checkpoints.choose(store, named_step if step_idx < 0 else step_idx, load_best)
        with_optimizer = load_optimizer and _has_optimizer(trainer)
        record = trainer.checkpoints.load(store, step, trainer.engine, trainer.progress, with_optimizer, deletes_first)
    if any(loader is not None for loader in loaders):
        load_positions(trainer, record, *loaders)
    return step


def load_positions(trainer: "TrainerModule", record: Mapping[str, Any], *loaders: Any) -> None:
    """Put the positions of loaders back that were saved with a step.

    Args:
        trainer: The trainer.
        record: The record of the step.
        *loaders: Those for training, validation and test; None for one that is not wanted.
    """
    saved = decode_position(saved_training.own_loaders(record, trainer.processes))
    trainer.restore_data_loaders(saved, *loaders)


def _has_optimizer(trainer: "TrainerModule") -> bool:
    return trainer.progress.form.opt_state is not None


def build_from_checkpoint(
    trainer_class: type[Built], checkpoint: pathlib.Path, exmp_input: Any, batch_size: int
) -> Built:
    """Build a trainer with the configs and the latest state of a run, and open no run of its own.

    Args:
        trainer_class: The class of the trainer.
        checkpoint: The run's folder, its folder of checkpoints, or that of one step.
        exmp_input: An example batch, from which shapes are inferred.
        batch_size: How many examples of it to use; -1 for all.
    """
    if exmp_input is None:
        raise CheckpointError("exmp_input: an example batch is needed to build the model; arrays or their shapes")
    configs, store, step = RunConfigs.of_checkpoint(checkpoint)
    batch = exmp_input if batch_size < 0 else slice_batch(exmp_input, slice(0, batch_size))
    with without_opening_runs():
        assert configs.model is not None and configs.optimizer is not None  # noqa: PT018 - both were read
        trainer = trainer_class(configs.trainer, configs.model, configs.optimizer, batch)
    trainer.load_pretrained_model(store.root, step)
    return trainer
