"""The folder of a run. Two runs never share one by accident.

A folder holds one run. While that trains, a second start is refused. Afterwards `resume="never"` starts in a folder of
its own, `<log_path>-2` and so on; `"auto"` and `"must"` continue the run that is there.
"""

import itertools
from dataclasses import replace
from pathlib import Path

from trackside.clock import Clock
from trackside.errors import ConfigError
from trackside.logger import LoggerConfig
from trackside.logger.run_directory import fill_in_time, holds_rows
from trackside.measured_run.run_lock import check_unlocked
from trackside.processes import Processes

MAX_FOLDERS = 10_000


def choose_run_folder(
    config: LoggerConfig, resume: str, processes: Processes, clock: Clock
) -> tuple[LoggerConfig, bool]:
    """Where a run goes. The first process looks, and the others do as it does.

    Args:
        config: What the user wrote.
        resume: `TrainerConfig.resume`.
        processes: The processes that train together.
        clock: Where `{time}` comes from.

    Returns:
        The config with the folder that was chosen, and whether the run in it is continued.

    Raises:
        ConfigError: A training is running in the folder, or a tool cannot work with it.
        MissingExtraError: The package of a tool is not installed.
    """
    if processes.is_main:  # which alone has tools
        for tool in config.log_tools:
            tool.check_usable(config.log_path is not None)
    if config.log_path is None:
        return config, False
    now = processes.broadcast(int(clock.timestamp())) if "{time}" in str(config.log_path) else 0
    wanted = fill_in_time(config.log_path, now)
    number = processes.main_decides(lambda: _choose_number(wanted, resume), f"run {wanted}")
    if number == 0:
        return replace(config, log_path=wanted), True
    return replace(config, log_path=numbered(wanted, number)), False


def numbered(path: Path, number: int) -> Path:
    """The folder of the run with a number: the folder itself for the first."""
    return path if number == 1 else path.with_name(f"{path.name}-{number}")


def holds_run(path: Path) -> bool:
    """Whether a folder holds a run that has begun. One that was only built leaves the folder free."""
    return holds_rows(path, "leg", "metrics")


def check_still_free(path: Path, processes: Processes) -> None:
    """Refuse to train in a folder in which another training has begun since the trainer was built.

    Raises:
        ConfigError: One has.
    """

    def check() -> int:
        if holds_rows(path, "leg"):
            raise ConfigError(
                f"{path}: another training has begun there since this trainer was built; build the trainer again"
            )
        return 0

    processes.main_decides(check, f"run {path}")


def _choose_number(wanted: Path, resume: str) -> int:
    """The number of the folder for a new run; 0 to continue the run that is there."""
    check_unlocked(wanted)
    if resume != "never":
        return 0 if holds_run(wanted) else 1
    free = (number for number in itertools.count(1) if not holds_run(numbered(wanted, number)))
    return next(itertools.islice(free, MAX_FOLDERS))
