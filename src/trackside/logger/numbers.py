"""Metrics in the forms that callers have them in, as the plain numbers of a row."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trackside.errors import MetricError


def to_numbers_by_name(metrics: Any) -> dict[str, float]:
    """Metrics in any form as the numbers to log: numbers keep their names, others are read as step metrics."""
    if isinstance(metrics, Mapping) and not any(isinstance(value, Mapping) for value in metrics.values()):
        return to_floats(metrics)
    from trackside.metrics import to_host_metrics

    return to_host_metrics(metrics)


def to_floats(host_metrics: Mapping[str, Any]) -> dict[str, float]:
    """Numbers by name, whatever package they come from, as Python's own.

    Raises:
        MetricError: A value is not one number.
    """
    return {name: value if type(value) is float else _to_number(name, value) for name, value in host_metrics.items()}


def _to_number(name: str, value: Any) -> float:
    if type(value) is int:
        return value
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text")
        return float(np.asarray(value).item())
    except (TypeError, ValueError) as error:
        raise MetricError(
            f"The metric {name!r} is {value!r}, which is not one number. Log a scalar, or use log_text, "
            "log_histogram or log_image."
        ) from error
