"""Measuring: what the loop and its callbacks use to show where time goes, and timers for your own loops.

The timers are loaded when they are first used; importing this package imports neither them nor jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trackside.profiling.timers.profiler import TrainingProfiler, get_profiler, log_profiling_metrics
    from trackside.profiling.timers.timed_function import profile_operation
    from trackside.profiling.timers.timed_loader import profile_data_loader
    from trackside.profiling.timers.timed_step import profile_jax_loss_fn, profile_make_step

# Each public name -> the module of `timers` that defines it.
_EXPORTS = {
    "TrainingProfiler": "profiler",
    "get_profiler": "profiler",
    "log_profiling_metrics": "profiler",
    "profile_data_loader": "timed_loader",
    "profile_jax_loss_fn": "timed_step",
    "profile_make_step": "timed_step",
    "profile_operation": "timed_function",
}

__all__ = [
    "TrainingProfiler",
    "get_profiler",
    "log_profiling_metrics",
    "profile_data_loader",
    "profile_jax_loss_fn",
    "profile_make_step",
    "profile_operation",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'trackside.profiling' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"trackside.profiling.timers.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
