"""Two runs, or two captured windows, side by side: what got slower, how certain that is, and what changed.

Nothing here needs jax.
"""

from trackside.compare.comparison import Comparison, compare_runs
from trackside.compare.difference import Cause, Difference
from trackside.compare.metric_changes import MetricChange, MetricPair
from trackside.compare.metric_series import MetricValue
from trackside.compare.undisturbed_step import StepTimeChange

__all__ = [
    "Cause",
    "Comparison",
    "Difference",
    "MetricChange",
    "MetricPair",
    "MetricValue",
    "StepTimeChange",
    "compare_runs",
]
