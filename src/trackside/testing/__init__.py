"""For users' own tests: assertions on a run, or on a captured function, that hold what a training costs."""

from trackside.testing.captured_function import capture_function
from trackside.testing.peak_bytes import assert_peak_bytes
from trackside.testing.recompiles import assert_no_recompiles
from trackside.testing.run_recompiles import assert_run_compiled_once
from trackside.testing.shares import assert_idle_share, assert_scope_share
from trackside.testing.speed import assert_steps_per_second

__all__ = [
    "assert_idle_share",
    "assert_no_recompiles",
    "assert_peak_bytes",
    "assert_run_compiled_once",
    "assert_scope_share",
    "assert_steps_per_second",
    "capture_function",
]
