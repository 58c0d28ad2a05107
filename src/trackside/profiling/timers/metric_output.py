"""Where the timers' figures go: the console, a logger, the event file and Weights & Biases.

None of these may end a training. A failure is reported once, and tried again the next time.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from trackside.events import EventSink
from trackside.profiling.timers.operation_summary import OperationSummary
from trackside.profiling.timers.wandb_rows import WandBRows

LOGGER = logging.getLogger(__name__)

PREFIX = "profiling"
"""What the metrics are logged under."""
METRICS = ("avg_time", "total_time", "count")
"""What is logged for each operation; the event file has everything."""


class MetricSink(Protocol):
    """Takes numbers by name, such as a `trackside.logger.Logger`."""

    def log_host_metrics(self, host_metrics: Mapping[str, Any], step: int, mode: str | None = None) -> None:
        """Log them."""
        ...


class MetricOutput:
    """Sends what the timers measured to where it should go."""

    def __init__(self) -> None:
        self._failed: set[str] = set()
        self._wandb = WandBRows(PREFIX)

    def log(
        self,
        summary: Mapping[str, OperationSummary],
        not_sampled: Sequence[str],
        step: int,
        logger: MetricSink | None,
        events: EventSink | None,
        log_to_wandb: bool,
    ) -> None:
        """Print the figures, and log them.

        Args:
            summary: What the operations took, by name.
            not_sampled: Operations without enough samples.
            step: The step to log it at.
            logger: Receives the metrics, if any.
            events: Receives everything, if any.
            log_to_wandb: Whether the active W&B run receives the metrics, if there is one.
        """
        self._try("the console", lambda: _print("\n".join(console_lines(summary, not_sampled, step))))
        metrics = metrics_of(summary)
        if events is not None:
            row = {name: dict(entry) for name, entry in summary.items()}
            self._try(
                "the event file",
                lambda: events.write(PREFIX, step=step, operations=row, not_sampled=list(not_sampled)),
            )
        if logger is not None and metrics:
            self._try("the logger", lambda: logger.log_host_metrics(metrics, step, mode=PREFIX))
        if log_to_wandb and metrics:
            self._try("Weights & Biases", lambda: self._wandb.log(metrics, step))

    def _try(self, where: str, log: Callable[[], object]) -> None:
        try:
            log()
        except Exception as error:
            if where not in self._failed:
                LOGGER.warning(
                    "Profiling metrics could not be logged to %s: %s: %s", where, type(error).__name__, error
                )
            self._failed.add(where)


def console_lines(summary: Mapping[str, OperationSummary], not_sampled: Sequence[str], step: int) -> Iterator[str]:
    """The figures as lines for people."""
    yield f"--- Profiling Metrics (Step {step}) ---"
    for name in sorted({*summary, *not_sampled}):
        entry = summary.get(name)
        if entry is None:
            yield f"{name}: not sampled yet"
        else:
            yield f"{name}: avg={entry['avg_time']:.4f}s, total={entry['total_time']:.2f}s, count={entry['count']}"


def metrics_of(summary: Mapping[str, OperationSummary]) -> dict[str, float]:
    """The metrics of all operations, as `<operation>_<metric>`."""
    return {f"{name}_{metric}": entry[metric] for name, entry in summary.items() for metric in METRICS}


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
