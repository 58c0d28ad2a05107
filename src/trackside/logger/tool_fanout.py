"""The tools of a logger: each gets everything, and none is another's problem."""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trackside.clock import Clock
from trackside.errors import ConfigError, MissingExtraError
from trackside.logger.tool import LoggerTool, LoggerToolsConfig
from trackside.logger.worker import ToolRunner, build_runner
from trackside.metric_columns import MetricColumns, MetricRow
from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import DRAIN

if TYPE_CHECKING:
    from trackside.logger.logger import Logger

LOGGER = logging.getLogger(__name__)


class ToolFanout:
    """Hands each call to all tools, with a copy of what is logged.

    Args:
        tools: The tools.
        clock: What waiting for a slow tool is measured with.
        ledger: Where the time that closing each of them takes is booked.
    """

    def __init__(self, tools: Sequence[LoggerTool], clock: Clock, ledger: Ledger | None = None):
        self._ledger = Ledger(clock) if ledger is None else ledger
        self._runners: list[ToolRunner] = [build_runner(tool, clock) for tool in tools]

    @property
    def tools(self) -> list[LoggerTool]:
        """The tools, in the order of their configs."""
        return [runner.tool for runner in self._runners]

    def __bool__(self) -> bool:
        return bool(self._runners)

    def report_closing_to(self, on_closed: Callable[[dict[str, Any]], None]) -> None:
        """Have someone hear of each tool that is behind when it is closed."""
        for runner in self._runners:
            runner.on_closed = on_closed

    def log_config(self, config: dict[str, Any]) -> None:
        """Log the configuration."""
        for runner in self._runners:
            runner.call("log_config", dict(config))

    def rewind(self, step: int) -> None:
        """Tell every tool after which step the training continues."""
        for runner in self._runners:
            runner.call("rewind", step)

    def log_metrics(self, values: dict[str, float], step: int, epoch: int, mode: str) -> None:
        """Log a row of metrics."""
        for runner in self._runners:
            runner.call("log_metrics", dict(values), step, epoch, mode)

    def log_metrics_rows(self, rows: Sequence[MetricRow], mode: str) -> None:
        """Log several rows of metrics."""
        for runner in self._runners:
            runner.call_with_rows([(dict(values), step, epoch) for values, step, epoch in rows], mode)

    def log_metrics_columns(self, columns: MetricColumns, mode: str) -> None:
        """Log several rows that have the same metrics."""
        for runner in self._runners:
            runner.call_with_columns(columns.copied(), mode)

    def can_show(self, method: str) -> bool:
        """Whether any tool overrides `LoggerTool`'s method of this name."""
        return any(runner.can_show(method) for runner in self._runners)

    def show(self, method: str, name: str, value: Any, step: int, mode: str) -> None:
        """Hand a text, or an array that belongs to them, to the tools that can show it."""
        for runner in self._runners:
            if runner.can_show(method):
                runner.call(method, name, value if isinstance(value, str) else value.copy(), step, mode)

    def flush(self) -> None:
        """Have every tool bring what it has to where it can be seen."""
        for runner in self._runners:
            runner.flush()

    def finalize(self, status: str) -> None:
        """Close every tool, and wait until it has what was logged. Closing them again does nothing."""
        runners, self._runners = self._runners, []
        for runner in runners:
            with self._ledger.spend(f"{DRAIN}{runner.name}"):
                runner.finalize(status)


def build_tools(
    configs: Sequence[LoggerToolsConfig], logger: "Logger", clock: Clock, ledger: Ledger | None = None
) -> ToolFanout:
    """Make the tools of a logger.

    Args:
        configs: The tools' configs. One that cannot be created is reported and left out.
        logger: The logger that the tools belong to.
        clock: What waiting for a slow tool is measured with.
        ledger: Where the time that closing each of them takes is booked.

    Raises:
        ConfigError: A tool cannot work as configured.
        MissingExtraError: A tool's package is not installed.
    """
    return ToolFanout([tool for config in configs if (tool := _create(config, logger)) is not None], clock, ledger)


def _create(config: LoggerToolsConfig, logger: "Logger") -> LoggerTool | None:
    try:
        return config.create(logger)
    except (ConfigError, MissingExtraError):
        raise  # a mistake in the set-up, found before the first step
    except Exception as error:
        LOGGER.error(
            "The logging tool of %s could not be created: %s: %s. Training and the other tools continue without it.",
            type(config).__name__,
            type(error).__name__,
            error,
            exc_info=error,
        )
        return None
