"""Evaluations of a trainer's model, with their hooks and their log rows."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from trackside.callbacks import CallbackList
from trackside.errors import DataError
from trackside.measured_run.batch_size import loader_length
from trackside.metrics import Metrics, to_host_metrics
from trackside.profiling.ledger_totals import LOGGING, VALIDATION
from trackside.trainer.first_look import NO_BATCH
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
            values = to_host_metrics(evaluate_loader(trainer, loader, mode, epoch, name))
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


def evaluate_loader(
    trainer: "TrainerModule", loader: Iterable, mode: str = "", epoch: int = -1, name: str = ""
) -> Metrics:
    """Evaluate on one data set, without logging.

    Args:
        trainer: The trainer.
        loader: The batches.
        mode: What the progress bar shows.
        epoch: What the progress bar shows next to it.
        name: The loader's name among several.

    Returns:
        The metrics, on the device.
    """
    desc = f"{mode} {epoch}" if epoch >= 0 else mode

    def tracked(batches: Iterable) -> Iterable:
        return trainer.tracker(batches, desc=desc, total=loader_length(loader), leave=False, delay=1.0)

    carry, layout = trainer.engine.to_evaluate(trainer.progress.carry), trainer.init_eval_metrics().layout
    argument = f"{mode}_loader" if mode else "data_loader"
    return trainer.evaluator.evaluate(carry, loader, layout, tracked, _named(argument, name), trainer.first_look)


def check_not_empty(loaders: Loaders | None, argument: str) -> None:
    """Raise if there is nothing to evaluate on, as far as can be said without reading a batch.

    Args:
        loaders: The batches, a dict of loaders, or None.
        argument: What the user calls them.
    """
    named = loaders if isinstance(loaders, dict) else {} if loaders is None else {"": loaders}
    if isinstance(loaders, dict) and not loaders:
        raise DataError(f"{argument}: it is a dict without loaders; leave it out, or give each loader a name in it")
    for name, loader in named.items():
        if loader_length(loader) == 0:
            raise DataError(
                f"{_named(argument, name)}: it is empty (its length is 0); leave it out, or give it batches"
            )


def try_one_batch(trainer: "TrainerModule", val_loader: Loaders) -> dict[str, float] | None:
    """Run the evaluation step on one batch, and log nothing.

    Args:
        trainer: The trainer.
        val_loader: The validation loader, which is left alone if it can be read only once.

    Returns:
        The metrics that a validation will have, with the values of that batch; None if no batch was read.
    """
    check_not_empty(val_loader, "val_loader")
    loaders = val_loader if isinstance(val_loader, dict) else {"": val_loader}
    name, loader = next(iter(loaders.items()))
    layout = trainer.init_eval_metrics().layout
    with trainer.ledger.spend(VALIDATION):
        if isinstance(loader, Iterator):
            return None
        first = trainer.first_look.look(loader, _named("val_loader", name))
        batches = [] if first is NO_BATCH else [first]
        metrics = trainer.evaluator.evaluate(trainer.progress.carry, batches, layout, name=_named("val_loader", name))
        values = to_host_metrics(metrics)
        named = {f"{key}_{name}" if key else name: value for key in loaders for name, value in values.items()}
        return trainer.logger.preview_metrics(named, "val")


def _named(argument: str, name: str) -> str:
    """What a loader is called in errors: its argument, and its name if it is one of several."""
    return f"{argument}[{name!r}]" if name else argument
