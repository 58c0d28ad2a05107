"""What the log says before a training: how long it is, on which data, of which model, on which devices."""

import logging
from typing import TYPE_CHECKING

from trackside.measured_run.loader_description import describe_loaders
from trackside.text import count
from trackside.trainer.batch import DataloaderModule

if TYPE_CHECKING:
    from trackside.trainer.trainer import TrainerModule

LOGGER = logging.getLogger(__name__)


def announce(
    trainer: "TrainerModule",
    num_epochs: int | None,
    num_train_steps: int | None,
    steps_per_epoch: int | None,
    dataset: DataloaderModule,
) -> None:
    """Log what is about to be trained.

    Args:
        trainer: The trainer.
        num_epochs: As in `train_model`.
        num_train_steps: As in `train_model`.
        steps_per_epoch: As in `train_model`.
        dataset: The loaders.
    """
    length = count(num_epochs, "epoch") if num_epochs is not None else count(num_train_steps or 0, "step")
    per_epoch = f" of {count(steps_per_epoch, 'step')}" if num_epochs is not None and steps_per_epoch else ""
    LOGGER.info("Training for %s%s, from step %d.", length, per_epoch, trainer.global_step)
    loaders = {"train": dataset.train_dataloader, "val": dataset.val_dataloader, "test": dataset.test_dataloader}
    for name, loader in describe_loaders(loaders, trainer.trainer_config.prefetch_batches).items():
        LOGGER.info("%s data: %s", name, loader.text)
    LOGGER.info("%s parameters, mesh %s", f"{trainer.get_num_params():,}", dict(trainer.mesh.shape))
