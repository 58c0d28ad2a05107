"""Runs on disk, read back: finished, running or dead. Nothing here needs jax.

`open_run(path)` gives a `Run`.
"""

from trackside.errors import RunError
from trackside.runs.hosts import Host, HostTable, SilentHost, SlowHost
from trackside.runs.logged_step_times import StepTimes
from trackside.runs.metric_table import MetricTable
from trackside.runs.plots import Plots
from trackside.runs.run import Run, open_run
from trackside.runs.run_axes import RunAxes
from trackside.runs.run_folders import find_runs
from trackside.runs.run_legs import Leg

__all__ = [
    "Host",
    "HostTable",
    "Leg",
    "MetricTable",
    "Plots",
    "Run",
    "RunAxes",
    "RunError",
    "SilentHost",
    "SlowHost",
    "StepTimes",
    "find_runs",
    "open_run",
]
