"""Packed metrics on the host: read, merged over log intervals, and converted to the numbers that are logged."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from trackside.metrics.layout import MetricLayout
from trackside.metrics.packed import Metrics
from trackside.metrics.step_metric import split_log_modes

_ARRAYS = ("last", "sum", "count", "max", "std_steps", "std_mean", "std_m2")


class HostMetrics:
    """Metrics on the host, in double precision. They can be merged.

    Args:
        layout: The metrics, and their places in a packed vector.
        vector: A packed vector to read; without one, the state before any step.
    """

    def __init__(self, layout: MetricLayout, vector: np.ndarray | None = None):
        self.layout = layout
        vector = layout.initial if vector is None else vector
        at, floats, lead = layout.slices, vector.view(np.float32), vector.shape[:-1]
        self.num_steps = int(vector[..., 1].sum())
        self.last = floats[..., at["last"]]
        words = floats[..., at["sum"]].reshape(*lead, 2, -1)
        self.sum = words[..., 0, :].astype(np.float64) + words[..., 1, :]
        limbs = vector[..., at["count"]].reshape(*lead, 2, -1)
        self.count = limbs[..., 0, :] * 2.0**32 + limbs[..., 1, :]
        if len(indices := layout.float_count_indices):
            self.count[..., indices] = limbs.view(np.float32)[..., indices].sum(axis=-2, dtype=np.float64)
        self.max = floats[..., at["max"]]
        self.std_steps = vector[..., at["std_steps"]].astype(np.float64)
        self.std_mean = floats[..., at["std_mean"]].astype(np.float64)
        self.std_m2 = floats[..., at["std_m2"]].astype(np.float64)

    @classmethod
    def of_intervals(cls, layout: MetricLayout, vectors: np.ndarray) -> "HostMetrics":
        """The merged metrics of several intervals, which are in the order of their steps."""
        metrics = cls(layout, vectors)
        seen = metrics.count > 0
        newest = len(vectors) - 1 - np.argmax(seen[::-1], axis=0)
        metrics.last = np.take_along_axis(metrics.last, newest[None], axis=0)[0]
        metrics.sum, metrics.count = metrics.sum.sum(axis=0), metrics.count.sum(axis=0)
        metrics.max = metrics.max.max(axis=0)
        steps = metrics.std_steps.sum(axis=0)
        mean = (metrics.std_steps * metrics.std_mean).sum(axis=0) / np.maximum(steps, 1)
        spread = metrics.std_m2 + metrics.std_steps * (metrics.std_mean - mean) ** 2
        metrics.std_steps, metrics.std_mean, metrics.std_m2 = steps, mean, spread.sum(axis=0)
        return metrics

    def merge(self, later: "HostMetrics") -> None:
        """Add the metrics of later steps."""
        self.num_steps += later.num_steps
        seen = later.count > 0
        self.last = later.last if seen.all() else np.where(seen, later.last, self.last)
        self.sum = self.sum + later.sum
        self.count = self.count + later.count
        if len(self.max):
            self.max = np.maximum(self.max, later.max)
        if len(self.std_steps):
            self._merge_std(later)

    def _merge_std(self, later: "HostMetrics") -> None:
        total = self.std_steps + later.std_steps
        weight = later.std_steps / np.maximum(total, 1)
        with np.errstate(invalid="ignore"):  # of an infinity: the row shows it, and numpy need not warn
            delta = later.std_mean - self.std_mean
            self.std_m2 = self.std_m2 + later.std_m2 + delta * delta * self.std_steps * weight
            self.std_mean = self.std_mean + delta * weight
        self.std_steps = total

    def compute(self) -> dict[str, float]:
        """The numbers to log, without metrics that had no items in any step."""
        has_items = self.count > 0
        if has_items.all():
            return self._by_logged_name(self.sum / self.count)
        values = self._by_logged_name(self.sum / np.where(has_items, self.count, 1.0))
        for spec, there in zip(self.layout.specs, has_items, strict=True):
            if not there:
                for mode in spec.log_modes:
                    del values[spec.logged_name(mode)]
        return values

    def to_plain(self) -> dict[str, Any]:
        """As JSON can hold it, to the last bit."""
        arrays = {name: np.asarray(getattr(self, name), np.float64).tobytes() for name in _ARRAYS}
        encoded = {name: base64.b64encode(data).decode() for name, data in arrays.items()}
        return {"num_steps": self.num_steps, "names": list(self.layout.names), **encoded}

    @classmethod
    def from_plain(cls, layout: MetricLayout, plain: Mapping[str, Any]) -> "HostMetrics | None":
        """Back from `to_plain`; None if it was of other metrics."""
        metrics = cls(layout)
        arrays = {name: np.frombuffer(base64.b64decode(plain[name]), np.float64).copy() for name in _ARRAYS}
        fits = all(arrays[name].shape == getattr(metrics, name).shape for name in _ARRAYS)
        if tuple(plain["names"]) != layout.names or not fits:
            return None
        metrics.num_steps = plain["num_steps"]
        for name, array in arrays.items():
            setattr(metrics, name, array)
        return metrics

    def table(self) -> tuple[tuple[str, ...], list[float]]:
        """The names to log, and the numbers of each vector that was read, one after the other; all had items."""
        columns = self._columns(self.sum / self.count)
        names = tuple(name for names, _ in columns for name in names)
        return names, np.concatenate([values for _, values in columns], axis=-1).ravel().tolist() if columns else []

    def _by_logged_name(self, mean: np.ndarray) -> dict[str, float]:
        return {
            name: value
            for names, values in self._columns(mean)
            for name, value in zip(names, values.tolist(), strict=True)
        }

    def _columns(self, mean: np.ndarray) -> list[tuple[tuple[str, ...], np.ndarray]]:
        """The names of each log mode, and their numbers."""
        outputs = self.layout.outputs
        columns = [(outputs[mode].names, mean[..., outputs[mode].indices]) for mode in ("mean", "mean_nopostfix")]
        columns.append((outputs["single"].names, self.last[..., outputs["single"].indices]))
        columns.append((outputs["max"].names, self.max))
        if outputs["std"].names:
            columns.append((outputs["std"].names, np.sqrt(self.std_m2 / np.maximum(self.std_steps, 1))))
        return [(names, values) for names, values in columns if names]


def to_host_metrics(metrics: Metrics | Mapping[str, Any]) -> dict[str, float]:
    """The numbers to log for metrics in any form. Waits for the device if they are still being computed.

    Args:
        metrics: Accumulated metrics, or the metrics of one step as a loss function returns them. Plain numbers keep
            their names. A dict with value and count is logged by its log modes, or as the mean if it has none.
    """
    if isinstance(metrics, Metrics):
        return HostMetrics(metrics.layout, np.asarray(metrics.vector)).compute()
    numbers = {name: value for name, value in metrics.items() if not isinstance(value, Mapping)}
    arrays, modes = split_log_modes(metrics)
    modes = {**modes, **dict.fromkeys(numbers, ("mean_nopostfix",))}
    layout = MetricLayout.of(arrays, modes, default_log_modes=("mean",))
    return HostMetrics(layout, np.asarray(Metrics(layout).update(arrays).vector)).compute()


def reset_metrics(metrics: Metrics | Mapping[str, Any]) -> Any:
    """The same metrics in their state before any step."""
    if isinstance(metrics, Metrics):
        return metrics.reset()
    return {
        name: {**metric, "value": 0.0, "count": 0} if isinstance(metric, Mapping) else 0.0
        for name, metric in metrics.items()
    }
