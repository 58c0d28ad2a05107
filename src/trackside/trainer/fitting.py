"""What `fit` adds to `train_model`: the loaders of the data set, and callbacks for one training."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trackside.callbacks import Callback, CallbackList, ModelCheckpoint
from trackside.callbacks.callback_list import CallbackArgument, bind_callbacks
from trackside.errors import ConfigError
from trackside.measured_run.in_ledger import accounting
from trackside.profiling.ledger_totals import SETUP
from trackside.trainer.batch import DataloaderModule
from trackside.trainer.training_ledger import begin_ledger

if TYPE_CHECKING:
    from trackside.trainer.trainer import TrainerModule


def fit(
    trainer: "TrainerModule",
    given: DataloaderModule,
    num_epochs: int | None,
    num_train_steps: int | None,
    steps_per_epoch: int | None,
    callbacks: CallbackArgument,
) -> dict[str, dict[str, float]]:
    """Train with more callbacks than those of the config; one epoch unless told otherwise.

    Args:
        trainer: The trainer.
        given: The loaders that were given. For others, those of the trainer's data set serve.
        num_epochs: As in `train_model`.
        num_train_steps: As in `train_model`.
        steps_per_epoch: As in `train_model`.
        callbacks: Called after those of the config, in this training only.

    Returns:
        As `train_model`.
    """
    own = trainer.dataset or DataloaderModule()
    train_loader = own.train_dataloader if given.train_dataloader is None else given.train_dataloader
    if train_loader is None:
        raise ConfigError("train_loader: there is none; pass one, or set the loaders with set_dataset before")
    if num_epochs is None and num_train_steps is None:
        num_epochs = 1
    before = trainer.callbacks
    begin_ledger(trainer)
    with accounting(trainer.ledger, trainer.compile_cache):
        with trainer.ledger.spend(SETUP):
            added = bind_callbacks(callbacks, trainer, trainer.dataset)
        trainer.callbacks = CallbackList([*_without_replaced(before, added), *added], trainer.ledger)
        try:
            return trainer.train_model(
                train_loader,
                own.val_dataloader if given.val_dataloader is None else given.val_dataloader,
                own.test_dataloader if given.test_dataloader is None else given.test_dataloader,
                num_epochs,
                num_train_steps,
                steps_per_epoch,
            )
        finally:
            trainer.callbacks = before


def _without_replaced(callbacks: Iterable[Callback], added: list[Callback]) -> list[Callback]:
    """The callbacks without those that keep checkpoints in the folder of an added one, which takes their place."""
    folders = [one.directory for one in added if isinstance(one, ModelCheckpoint)]
    return [one for one in callbacks if not (isinstance(one, ModelCheckpoint) and one.directory in folders)]
