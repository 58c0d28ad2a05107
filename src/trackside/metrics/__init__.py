"""Metrics: accumulated on the device in one packed vector, merged and turned into numbers on the host."""

from trackside.metrics.host import HostMetrics, reset_metrics, to_host_metrics
from trackside.metrics.layout import MetricLayout, MetricSpec
from trackside.metrics.packed import Metrics
from trackside.metrics.step_metric import LOG_MODES, StepMetric, add_step_metrics, check_log_modes

__all__ = [
    "LOG_MODES",
    "HostMetrics",
    "MetricLayout",
    "MetricSpec",
    "Metrics",
    "StepMetric",
    "add_step_metrics",
    "check_log_modes",
    "reset_metrics",
    "to_host_metrics",
]
