"""Two runs, or two captured windows, beside each other: what got slower, how sure that is, and what changed.

Nothing here needs jax.
"""

from trackside.compare.cause import Cause
from trackside.compare.comparison import Comparison, compare_runs
from trackside.compare.difference import Difference
from trackside.compare.step_time import StepTimeChange

__all__ = ["Cause", "Comparison", "Difference", "StepTimeChange", "compare_runs"]
