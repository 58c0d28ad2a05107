"""What the assertions look at: a run by its path or opened, or the report of a captured function."""

import os
from pathlib import Path

from trackside.compare.sides import is_run
from trackside.errors import ConfigError
from trackside.runs import Run, open_run
from trackside.trace import TraceReport, analyse_trace
from trackside.trace.capture_row import analysed_captures

RunOrReport = Run | TraceReport | str | os.PathLike[str]


def open_measured(measured: RunOrReport) -> Run | TraceReport:
    """A run or a trace by its path; what is open already as it is.

    Raises:
        RunError: There is no run at that path.
        TraceError: There is no trace at that path.
    """
    if isinstance(measured, Run | TraceReport):
        return measured
    path = Path(measured)
    return open_run(path) if is_run(path) or not path.exists() else analyse_trace(path)


def last_report(run: Run) -> TraceReport:
    """The tables of a run's last capture.

    Raises:
        ConfigError: It has none.
    """
    captures = analysed_captures(run.captures)
    if not captures:
        raise ConfigError(f"{run.path}: the run has no capture; train with a JaxProfilerConfig or ProfilingConfig")
    return captures[-1][1]


def check_limit(name: str, value: float, largest: float = float("inf")) -> None:
    """Refuse a limit that nothing could keep to.

    Raises:
        ConfigError: It is negative, no number, or too large.
    """
    if not 0 <= value <= largest:
        expected = "0 or more" if largest == float("inf") else f"from 0 to {largest:g}"
        raise ConfigError(f"{name}: expected a number {expected}; got {value!r}")
