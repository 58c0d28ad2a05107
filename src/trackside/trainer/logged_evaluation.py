"""Evaluations of a trainer's model, with their hooks and their log rows."""

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from trackside.callbacks import CallbackList
from trackside.errors import DataError
from trackside.measured_run.batch_size import loader_length
from trackside.metrics import Metrics, to_host_metrics
from trackside.profiling.ledger_totals import LOGGING, VALIDATION
from trackside.trainer.loaders import decode_position, get_position, has_position, open_loader, set_position
from trackside.trainer.overridable import OwnHooks
from trackside.trainer.training_ledger import write_ledger_again

if TYPE_CHECKING:
    from trackside.trainer.trainer import TrainerModule

LOGGER = logging.getLogger(__name__)

Loaders = Iterable | dict[str, Iterable]


def validate(trainer: "TrainerModule", val_loader: Loaders, epoch: int) -> dict[str, float]:
    """Validate during training, with the hooks around it.

    Args:
        trainer: The trainer.
        val_loader: The batches, or a dict of loaders whose keys are prefixed to the metrics.
        epoch: The epoch for hooks and log.

    Returns:
        The metrics, with what hooks added to them.
    """
    step, hooks = trainer.global_step, CallbackList([OwnHooks(trainer), *trainer.callbacks], trainer.ledger)
    hooks.call("on_validation_epoch_start", epoch, step)
    return evaluate_and_log(
        trainer, val_loader, "val", epoch, lambda metrics: hooks.call("on_validation_epoch_end", metrics, epoch, step)
    )


def run_test(trainer: "TrainerModule", test_loader: Loaders, with_callbacks: bool, epoch: int) -> dict[str, float]:
    """Test the model, with the hooks around it.

    Args:
        trainer: The trainer.
        test_loader: The batches, or a dict of loaders whose keys are prefixed to the metrics.
        with_callbacks: Whether the callbacks hear of it.
        epoch: The epoch for hooks and log; within `best_model`, that of the best model counts.

    Returns:
        The metrics, with what hooks added to them.
    """
    if trainer.progress.lent_from is not None:
        epoch = trainer.progress.lent_from[1]
    hooks = CallbackList([OwnHooks(trainer), *(trainer.callbacks if with_callbacks else ())], trainer.ledger)
    hooks.call("on_test_epoch_start", epoch)
    return evaluate_and_log(
        trainer, test_loader, "test", epoch, lambda metrics: hooks.call("on_test_epoch_end", metrics, epoch)
    )


def evaluate_and_log(
    trainer: "TrainerModule",
    loaders: Loaders,
    mode: str,
    epoch: int,
    on_end: Callable[[dict[str, float]], None] = lambda metrics: None,
) -> dict[str, float]:
    """Evaluate on one data set or several, and log the metrics.

    Args:
        trainer: The trainer.
        loaders: The batches, or a dict of loaders whose keys are prefixed to the metrics.
        mode: What to log them under.
        epoch: The epoch for the log.
        on_end: Gets the metrics, and may add to them, before they are logged.

    Returns:
        The metrics, averaged over the data points, with what was added to them.
    """
    logger, ledger = trainer.logger, trainer.ledger
    was_open, step = logger.is_open, trainer.global_step
    with ledger.spend(VALIDATION):
        logger.start_epoch(epoch, step, mode)
        metrics: dict[str, Any] = {}
        for name, loader in (loaders if isinstance(loaders, dict) else {"": loaders}).items():
            values = to_host_metrics(evaluate_loader(trainer, loader, mode, epoch))
            metrics.update({f"{name}_{key}" if name else key: value for key, value in values.items()})
        metrics = logger.complete_metrics(metrics)
        on_end(metrics)
        with ledger.spend(LOGGING):
            lent = trainer.progress.lent_from
            row_step = lent[0] if lent is not None and mode == "test" else step  # of a model, whenever it is tested
            logger.end_epoch(metrics, row_step, is_complete=True)
            if row_step != step:  # the training is where it was
                logger.step, logger.epoch = step, trainer.epoch
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if name != "epoch_time")
        of = "" if lent is None else f" of the best model, that of step {lent[0]:,}, after step {step:,}"
        LOGGER.info("epoch %d, step %d, %s%s: %s", epoch, row_step, mode, of, shown)
    if not was_open:  # after a training: the run is over again
        logger.close_tools(trainer.status)
        write_ledger_again(trainer)
        logger.finalize(trainer.status)
    return metrics


def evaluate_loader(trainer: "TrainerModule", loader: Iterable, mode: str = "", epoch: int = -1) -> Metrics:
    """Evaluate on one data set, without logging.

    Args:
        trainer: The trainer.
        loader: The batches.
        mode: What the progress bar shows.
        epoch: What the progress bar shows next to it.

    Returns:
        The metrics, on the device.
    """
    desc = f"{mode} {epoch}" if epoch >= 0 else mode

    def tracked(batches: Iterable) -> Iterable:
        return trainer.tracker(batches, desc=desc, total=loader_length(loader), leave=False, delay=1.0)

    carry, layout = trainer.engine.to_evaluate(trainer.progress.carry), trainer.init_eval_metrics().layout
    return trainer.evaluator.evaluate(carry, loader, layout, tracked, f"{mode}_loader" if mode else "data_loader")


def try_one_batch(trainer: "TrainerModule", val_loader: Loaders) -> dict[str, float] | None:
    """Run the evaluation step on one batch, and log nothing.

    Args:
        trainer: The trainer.
        val_loader: The validation loader, which is left alone if it can be read only once.

    Returns:
        The metrics that a validation will have, with the values of that batch; None if no batch was read.
    """
    loaders = val_loader if isinstance(val_loader, dict) else {"": val_loader}
    if not loaders:
        raise DataError("val_loader: it is a dict without loaders; leave it out, or give each loader a name in it")
    loader = next(iter(loaders.values()))
    layout = trainer.init_eval_metrics().layout
    with trainer.ledger.spend(VALIDATION):
        before = get_position(loader) if has_position(loader) else None
        iterator = open_loader(loader, "val_loader")
        if iterator is loader:
            return None
        first = next(iterator, None)
        if before is not None:
            set_position(loader, decode_position(before))
        batches = [] if first is None else [first]
        metrics = trainer.evaluator.evaluate(trainer.progress.carry, batches, layout, name="val_loader")
        values = to_host_metrics(metrics)
        named = {f"{key}_{name}" if key else name: value for key in loaders for name, value in values.items()}
        return trainer.logger.preview_metrics(named, "val")
