"""Callbacks: code that runs at fixed points of a training."""

from trackside.callbacks.callback import Callback, CallbackConfig
from trackside.callbacks.callback_list import CallbackList
from trackside.callbacks.early_stopping import EarlyStopping, EarlyStoppingConfig
from trackside.callbacks.ema import EMA, EMAConfig
from trackside.callbacks.learning_rate_monitor import LearningRateMonitor, LearningRateMonitorConfig
from trackside.callbacks.memory_profiler import MemoryProfileConfig, MemoryProfiler
from trackside.callbacks.model_checkpoint import CheckpointConfig, ModelCheckpoint
from trackside.callbacks.profiler import JAXProfiler, JaxProfiler, JaxProfilerConfig, ProfilingConfig
from trackside.callbacks.progress_bar_callback import ProgressBarCallback, ProgressBarConfig
from trackside.callbacks.trainer_view import TrainerView

__all__ = [
    "EMA",
    "Callback",
    "CallbackConfig",
    "CallbackList",
    "CheckpointConfig",
    "EMAConfig",
    "EarlyStopping",
    "EarlyStoppingConfig",
    "JAXProfiler",
    "JaxProfiler",
    "JaxProfilerConfig",
    "LearningRateMonitor",
    "LearningRateMonitorConfig",
    "MemoryProfileConfig",
    "MemoryProfiler",
    "ModelCheckpoint",
    "ProfilingConfig",
    "ProgressBarCallback",
    "ProgressBarConfig",
    "TrainerView",
]
