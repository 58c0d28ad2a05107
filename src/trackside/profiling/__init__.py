"""Measuring: what the loop and its callbacks use to tell where time goes, and timers for everybody's own loops.

The timers are loaded when they are first used; importing this package imports neither them nor jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trackside.profiling.errors import CaptureError
    from trackside.profiling.ledger import Ledger, LedgerTotals
    from trackside.profiling.profiled_loader import profile_data_loader
    from trackside.profiling.profiled_step import profile_jax_loss_fn, profile_make_step
    from trackside.profiling.sentinel import RecompileError, RecompileSentinel
    from trackside.profiling.timers import TrainingProfiler, get_profiler, log_profiling_metrics
    from trackside.profiling.wrappers import profile_operation

# Each public name -> the module that defines it.
_EXPORTS = {
    "CaptureError": "errors",
    "Ledger": "ledger",
    "LedgerTotals": "ledger",
    "RecompileError": "sentinel",
    "RecompileSentinel": "sentinel",
    "TrainingProfiler": "timers",
    "get_profiler": "timers",
    "log_profiling_metrics": "timers",
    "profile_data_loader": "profiled_loader",
    "profile_jax_loss_fn": "profiled_step",
    "profile_make_step": "profiled_step",
    "profile_operation": "wrappers",
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
    return getattr(importlib.import_module(f"trackside.profiling.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
