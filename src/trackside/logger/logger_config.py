"""The configuration of the logger."""

import re
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path

from trackside.config import ConfigDict
from trackside.errors import ConfigError
from trackside.logger.tool import LoggerToolsConfig


@dataclass(kw_only=True)
class LoggerConfig(ConfigDict):
    """Where and how often to log."""

    log_every_n_steps: int = 1
    """Log a row every N training steps."""
    log_path: Path | None = None
    """The run's directory; `{time}` in it becomes the time of the start; None keeps nothing on disk."""
    log_tools: list[LoggerToolsConfig] = field(default_factory=list)
    """The tools that get every row, in addition to the event file; one alone is a list of one."""
    cmd_logging_name: str = "output"
    """The name of the log file in `log_path`, without its suffix `.log`."""

    def __post_init__(self):
        if self.log_path is not None:
            self.log_path = Path(self.log_path).expanduser()
            if "\0" in str(self.log_path):
                raise ConfigError(f"the run's folder is {str(self.log_path)!r}, and no path has a NUL in it; remove it")
        if isinstance(self.log_tools, LoggerToolsConfig):  # one alone is a list of one, as with callbacks
            self.log_tools = [self.log_tools]
        cadence = self.log_every_n_steps
        if not isinstance(cadence, Integral) or isinstance(cadence, bool) or cadence < 1:
            raise ConfigError(
                f"LoggerConfig.log_every_n_steps is {cadence!r}. Use a whole number of steps, at least 1."
            )
        if not re.fullmatch(r"[^/\\\0.][^/\\\0]*", self.cmd_logging_name):
            raise ConfigError(
                f"LoggerConfig.cmd_logging_name is {self.cmd_logging_name!r}. Use a plain file name without "
                "directories, such as 'output'."
            )

    @property
    def log_dir(self) -> str:
        """The log directory as a string; empty without one."""
        return "" if self.log_path is None else self.log_path.as_posix()
