"""What every measured run has, whoever owns its loop: folder, lock, meter, verdicts, progress, and an orderly end."""

from trackside.measured_run.measured_run import MeasuredRun
from trackside.measured_run.opening import run

__all__ = ["MeasuredRun", "run"]
