"""An evaluation with its hooks and its log row."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from trackside.logger import Logger
from trackside.metrics import Metrics, to_host_metrics
from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import LOGGING, VALIDATION

LOGGER = logging.getLogger(__name__)

Loaders = Iterable | dict[str, Iterable]


def evaluate_and_log(
    loaders: Loaders,
    mode: str,
    epoch: int,
    step: int,
    run: Callable[[Iterable, str, int], Metrics],
    on_end: Callable[[dict[str, float]], None],
    logger: Logger,
    ledger: Ledger,
) -> dict[str, float]:
    """Evaluate on one data set or several, and log the metrics.

    Args:
        loaders: The batches, or a dict of loaders whose keys are prefixed to the metrics.
        mode: What to log them under.
        epoch: The epoch for the log.
        step: The training step.
        run: Evaluates on one loader.
        on_end: Gets the metrics, and may add to them, before they are logged.
        logger: Gets the row.
        ledger: Where the time is booked.

    Returns:
        The metrics, averaged over the data points, with what was added to them.
    """
    with ledger.spend(VALIDATION):
        logger.start_epoch(epoch, step, mode)
        metrics: dict[str, Any] = {}
        for name, loader in (loaders if isinstance(loaders, dict) else {"": loaders}).items():
            values = to_host_metrics(run(loader, mode, epoch))
            metrics.update({f"{name}_{key}" if name else key: value for key, value in values.items()})
        metrics = logger.complete_metrics(metrics)
        on_end(metrics)
        with ledger.spend(LOGGING):
            logger.end_epoch(metrics, step, is_complete=True)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if name != "epoch_time")
        LOGGER.info("epoch %d, step %d, %s: %s", epoch, step, mode, shown)
        return metrics
