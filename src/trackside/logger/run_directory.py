"""What a logger keeps in the directory of its run."""

import json
import time
from pathlib import Path
from typing import Any

from trackside.clock import Clock
from trackside.config import ConfigDict
from trackside.errors import ConfigError
from trackside.events import EventWriter, NullEventWriter
from trackside.files import write_atomically
from trackside.logger.console import LogOutput
from trackside.run_layout import (
    CONFIG_FILE_NAME,
    WHERE_A_RUN_IS_GIVEN_ITS_FOLDER,
    event_file_name,
    log_file_name,
)


def fill_in_time(path: Path, timestamp: float) -> Path:
    """The folder that a `log_path` means: `{time}` in it becomes the local time, as `20250131-235959`.

    Args:
        path: What the user wrote.
        timestamp: The time, in seconds since the epoch.
    """
    return Path(str(path).replace("{time}", time.strftime("%Y%m%d-%H%M%S", time.localtime(timestamp))))


def holds_rows(path: Path, *kinds: str) -> bool:
    """Whether a folder has an event file with a row of one of these kinds.

    Args:
        path: The folder, which need not exist.
        kinds: The kinds.
    """
    events, beginnings = path / event_file_name(0), tuple(b'{"kind":"%b"' % kind.encode() for kind in kinds)
    try:
        if not events.is_file():
            return False
        with events.open("rb") as file:
            return any(line.startswith(beginnings) for line in file)
    except OSError:  # the folder cannot be used, which those who open it explain
        return False


class RunDirectory:
    """The event file and the log file of one process of a run, open.

    Args:
        path: The run's directory, made when missing; None for a run that keeps nothing on disk.
        log_name: The log file's name without suffix.
        process_index: Which process of the run this is; only the first writes to the terminal.
        clock: Where the events' times come from.

    Raises:
        ConfigError: The directory cannot be made or written to.
    """

    def __init__(self, path: Path | None, log_name: str, process_index: int, clock: Clock):
        self.path = path
        self.held_a_run = False
        """Whether an event file was there already."""
        self.events: EventWriter | NullEventWriter = NullEventWriter()
        log_file = None
        try:
            if path is not None:
                path.mkdir(parents=True, exist_ok=True)
                self.held_a_run = (path / event_file_name(process_index)).exists()
                self.events = EventWriter(path / event_file_name(process_index), clock)
                log_file = path / log_file_name(log_name, process_index)
            self._log_output = LogOutput(log_file, to_console=process_index == 0)
        except OSError as error:
            self.events.close()
            raise unusable_folder(path, error) from error

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the configuration file; a kill leaves the old or the new one."""
        if self.path is None:
            return
        write_atomically(self.path / CONFIG_FILE_NAME, json.dumps(config, indent=2, default=str) + "\n")

    def close(self) -> None:
        """Close the files and give the log records back to whom they belonged."""
        self.events.close()
        self._log_output.close()


def to_plain_config(config: Any) -> Any:
    """Configs, also inside dicts and lists, as plain values."""
    if isinstance(config, ConfigDict):
        return config.to_dict()
    if isinstance(config, dict):
        return {str(name): to_plain_config(value) for name, value in config.items()}
    if isinstance(config, list | tuple):
        return [to_plain_config(value) for value in config]
    return config


def unusable_folder(path: Path | None, error: Exception) -> ConfigError:
    """The error for a run's folder that cannot be made or written to."""
    return ConfigError(
        f"the run's folder {str(path)!r} cannot be used: {error}. Choose a directory that can be created and written "
        f"to ({WHERE_A_RUN_IS_GIVEN_ITS_FOLDER}), or None to keep nothing on disk."
    )
