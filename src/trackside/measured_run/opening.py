"""`trackside.run`: what opens a run around a loop of the user's own."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trackside.callbacks.callback_list import CallbackArgument
from trackside.config.declared_types import check_types
from trackside.errors import ConfigError
from trackside.logger import LoggerConfig, LoggerToolsConfig
from trackside.measured_run.measured_run import MeasuredRun


def run(
    path: str | Path | None,
    *,
    config: Any = None,
    resume: bool = False,
    start_step: int = 0,
    num_steps: int | None = None,
    tools: LoggerToolsConfig | Iterable[LoggerToolsConfig] = (),
    callbacks: CallbackArgument = (),
    progress: bool = False,
    max_recompiles: int = -1,
    silence_findings: Iterable[str] = (),
) -> MeasuredRun:
    """Measure a loop of your own as the trainer measures its own.

    Use it in a `with` statement, or call `close` at the end, as in a notebook.

    Args:
        path: The run's folder; `{time}` in it becomes the time of the start. A folder that holds a run already is left
            alone: this one goes to `<path>-2`. None keeps nothing on disk.
        config: What `config.json` and the tools show: a dict, a dataclass, or a namespace of arguments.
        resume: Continue the run in the folder as a new leg, if there is one.
        start_step: Steps done before, such as those of the checkpoint that the loop continues from.
        num_steps: Steps in all, for the time that is left.
        tools: Where rows go in addition to the event file: `FileLoggerConfig()`, `TensorBoardLoggerConfig()`,
            `WandBLoggerConfig(...)`.
        callbacks: Captures and the memory's timeline: `JAXProfiler`, `JaxProfiler`, `MemoryProfiler`, or their configs.
        progress: Whether to show a progress bar, or lines where there is no terminal.
        max_recompiles: Warn when a measured function compiles more often than this beyond the first time; -1 for never.
        silence_findings: Findings that are not reported, by id, such as `input-bound`.

    Raises:
        ConfigError: The folder is in use by another run, or an argument cannot work.
    """
    check_types(
        run, path=path, resume=resume, start_step=start_step, num_steps=num_steps, progress=progress,
        max_recompiles=max_recompiles,
    )  # fmt: skip
    if num_steps is not None and num_steps < 1:
        raise ConfigError(f"num_steps: expected a positive number, or None; got {num_steps}")
    if max_recompiles < -1:
        raise ConfigError(f"max_recompiles: expected 0 or more, or -1 for never; got {max_recompiles}")
    folder = None if path is None else Path(path)
    return MeasuredRun(
        LoggerConfig(log_path=folder, log_tools=_listed_tools(tools)),
        config,
        resume,
        start_step,
        num_steps,
        callbacks,
        progress,
        max_recompiles,
        silence_findings,
    )


def _listed_tools(given: Any) -> list[LoggerToolsConfig]:
    """The configs of tools that a user gave; one alone is a list of one."""
    several: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for one in several:
        if not isinstance(one, LoggerToolsConfig):
            raise ConfigError(f"tools: expected configs of tools such as FileLoggerConfig(), got {one!r}")
    return several
