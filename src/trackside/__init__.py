"""Train JAX models with the stopwatch running.

`import trackside` imports nothing else. Its parts are loaded when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trackside import (
        callbacks,
        compare,
        config,
        decoding,
        errors,
        events,
        findings,
        fusing,
        logger,
        measured_run,
        metrics,
        profiling,
        report,
        runs,
        testing,
        trace,
        trainer,
    )
    from trackside.config import ConfigDict, apply_overrides, load_config, register, save_config
    from trackside.errors import TracksideError
    from trackside.fusing import fuse_steps
    from trackside.logger import Logger, LoggerConfig
    from trackside.measured_run import run
    from trackside.runs import Run, open_run
    from trackside.trainer import (
        Batch,
        DataloaderModule,
        ModelConfig,
        OptimizerConfig,
        ParallelConfig,
        SchedulerConfig,
        Trainer,
        TrainerConfig,
        TrainerModule,
    )

__version__ = "0.1.0"

# Each public name -> the module that defines it; None for modules.
_EXPORTS = {
    "Batch": "trainer",
    "ConfigDict": "config",
    "DataloaderModule": "trainer",
    "Logger": "logger",
    "LoggerConfig": "logger",
    "ModelConfig": "trainer",
    "OptimizerConfig": "trainer",
    "ParallelConfig": "trainer",
    "Run": "runs",
    "SchedulerConfig": "trainer",
    "TracksideError": "errors",
    "Trainer": "trainer",
    "TrainerConfig": "trainer",
    "TrainerModule": "trainer",
    "apply_overrides": "config",
    "callbacks": None,
    "compare": None,
    "config": None,
    "decoding": None,
    "errors": None,
    "events": None,
    "findings": None,
    "fuse_steps": "fusing",
    "fusing": None,
    "load_config": "config",
    "logger": None,
    "measured_run": None,
    "metrics": None,
    "open_run": "runs",
    "profiling": None,
    "register": "config",
    "report": None,
    "run": "measured_run",
    "runs": None,
    "save_config": "config",
    "testing": None,
    "trace": None,
    "trainer": None,
}

__all__ = [
    "Batch",
    "ConfigDict",
    "DataloaderModule",
    "Logger",
    "LoggerConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "Run",
    "SchedulerConfig",
    "TracksideError",
    "Trainer",
    "TrainerConfig",
    "TrainerModule",
    "apply_overrides",
    "callbacks",
    "compare",
    "config",
    "decoding",
    "errors",
    "events",
    "findings",
    "fuse_steps",
    "fusing",
    "load_config",
    "logger",
    "measured_run",
    "metrics",
    "open_run",
    "profiling",
    "register",
    "report",
    "run",
    "runs",
    "save_config",
    "testing",
    "trace",
    "trainer",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'trackside' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = _EXPORTS[name]
    if module is None:
        return importlib.import_module(f"trackside.{name}")
    return getattr(importlib.import_module(f"trackside.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
