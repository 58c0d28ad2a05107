"""Measuring: what the loop and its callbacks use to show where time goes, and timers for your own loops.

The timers are loaded when they are first used; importing this package imports neither them nor jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trackside.errors import CaptureError, RecompileError
    from trackside.profiling.ledger import Ledger
    from trackside.profiling.ledger_totals import LedgerTotals
    from trackside.profiling.sentinel import RecompileSentinel
    from trackside.profiling.timers.timed_function import profile_operation
    from trackside.profiling.timers.timed_loader import profile_data_loader
    from trackside.profiling.timers.timed_step import profile_jax_loss_fn, profile_make_step
    from trackside.profiling.timers.training_profiler import TrainingProfiler, get_profiler, log_profiling_metrics

# Each public name -> the module that defines it.
_EXPORTS = {
    "CaptureError": "trackside.errors",
    "Ledger": "trackside.profiling.ledger",
    "LedgerTotals": "trackside.profiling.ledger_totals",
    "RecompileError": "trackside.errors",
    "RecompileSentinel": "trackside.profiling.sentinel",
    "TrainingProfiler": "trackside.profiling.timers.training_profiler",
    "get_profiler": "trackside.profiling.timers.training_profiler",
    "log_profiling_metrics": "trackside.profiling.timers.training_profiler",
    "profile_data_loader": "trackside.profiling.timers.timed_loader",
    "profile_jax_loss_fn": "trackside.profiling.timers.timed_step",
    "profile_make_step": "trackside.profiling.timers.timed_step",
    "profile_operation": "trackside.profiling.timers.timed_function",
}

__all__ = [
    "CaptureError",
    "Ledger",
    "LedgerTotals",
    "RecompileError",
    "RecompileSentinel",
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
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
