"""What a logging tool is: the interface that TensorBoard, W&B, files and users' own tools implement."""

# ruff: noqa: B027 - the empty methods are what a tool may leave out
import abc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trackside.config import ConfigDict
from trackside.errors import ConfigError
from trackside.metric_columns import MetricColumns, MetricRow
from trackside.run_layout import WHERE_A_RUN_IS_GIVEN_ITS_FOLDER

if TYPE_CHECKING:
    from trackside.logger.logger import Logger


@dataclass(kw_only=True)
class LoggerToolsConfig(ConfigDict):
    """Base of the configs of logging tools, which the `Logger` creates."""

    def check_usable(self, has_folder: bool) -> None:
        """Raise if the tool cannot work, before anything of the run is written.

        Args:
            has_folder: Whether the run has a folder.
        """

    def create(self, logger: "Logger") -> "LoggerTool":
        """Make the tool.

        Args:
            logger: The logger that the tool belongs to; its `log_path` is where the tool may write.

        Returns:
            The tool, which need not be connected to anything yet: see `LoggerTool.setup`.

        Raises:
            ConfigError: The tool cannot work with this config or without a `log_path`.
        """
        raise ConfigError(
            f"log_tools: {type(self).__name__} is no tool. Name a tool's own config, such as FileLoggerConfig, or "
            "define create(logger) and return its LoggerTool."
        )


class LoggerTool(abc.ABC):
    """Base of logging tools. Only `log_metrics` is required; a tool overrides what else it can show.

    A tool's calls come in order and from one thread, its own unless `threaded` is False. Whatever it is given is a copy
    that it may keep or change. An exception is reported once and never reaches the training.

    Attributes:
        threaded: Whether the tool runs on a thread of its own; False for one whose calls cost microseconds.
        finalize_timeout_s: How long the end of a run waits for this tool, in seconds.
    """

    threaded: ClassVar[bool] = True
    finalize_timeout_s: float = 30.0

    def setup(self) -> None:
        """Connect and open files. Called once, before any other method and on the same thread as they are."""

    def log_config(self, config: dict[str, Any]) -> None:
        """Log the configuration.

        Args:
            config: All of it so far, as plain values without secrets; called again when there is more.
        """

    def rewind(self, step: int) -> None:
        """Training resumes after `step`: rows of later steps that are already there will come again.

        Called before any row of the resumed training. A tool whose curves would show steps twice, or that may have
        lost rows with a process that was killed, puts that right here.
        """

    @abc.abstractmethod
    def log_metrics(self, metrics: dict[str, float], step: int, epoch: int, mode: str) -> None:
        """Log a row of metrics.

        Args:
            metrics: The numbers by name.
            step: The training step.
            epoch: The epoch.
            mode: What they were measured in: `train`, `val`, `test`, `train_epoch` or a callback's own word.
        """

    def log_metrics_rows(self, rows: Sequence[MetricRow], mode: str) -> None:
        """Log several rows of metrics at once, as short steps have many.

        Override it if your tool can do that in less time than by `log_metrics` for each, which is what happens else.

        Args:
            rows: The metrics, the step and the epoch of each row.
            mode: As for `log_metrics`.
        """
        for metrics, step, epoch in rows:
            self.log_metrics(metrics, step, epoch, mode)

    def log_metrics_columns(self, columns: MetricColumns, mode: str) -> None:
        """Log several rows that have the same metrics.

        Override it if your tool can do that in less time than by `log_metrics_rows`, which is what happens else.

        Args:
            columns: The rows: names, values row by row, steps and epochs.
            mode: As for `log_metrics`.
        """
        self.log_metrics_rows(columns.rows(), mode)

    def log_image(self, name: str, image: np.ndarray, step: int, mode: str) -> None:
        """Log an image (HxWxC) or several (NxHxWxC), as uint8 with 1, 3 or 4 channels."""

    def log_text(self, name: str, text: str, step: int, mode: str) -> None:
        """Log a piece of text."""

    def log_histogram(self, name: str, values: np.ndarray, step: int, mode: str) -> None:
        """Log the distribution of finite numbers, given flat."""

    def log_figure(self, name: str, figure: np.ndarray, step: int, mode: str) -> None:
        """Log a figure, drawn: HxWx4, uint8."""

    def flush(self) -> None:
        """Bring everything logged so far to where it can be seen."""

    def finalize(self, status: str) -> None:
        """Close the tool.

        Args:
            status: How the run ended, `success` if it went well.
        """


def check_folder(has_folder: bool, tool: str) -> None:
    """Raise if the run of a tool that cannot do without a folder has none.

    Args:
        has_folder: Whether it has one.
        tool: What the tool's config is called.
    """
    if not has_folder:
        raise ConfigError(
            f"{tool} writes files, and the run has no folder. Give it one ({WHERE_A_RUN_IS_GIVEN_ITS_FOLDER}), or "
            f"take {tool} out of the run's tools."
        )


def tool_directory(logger: "Logger", log_dir: str, tool: str) -> Path:
    """The directory of a tool that cannot do without one.

    Args:
        logger: The logger that the tool belongs to.
        log_dir: The tool's directory inside the run's.
        tool: What the tool's config is called, for the error.

    Raises:
        ConfigError: The run has no `log_path`.
    """
    check_folder(logger.log_path is not None, tool)
    assert logger.log_path is not None
    return logger.log_path / log_dir
