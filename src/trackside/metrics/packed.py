"""Metrics accumulated on the device, in one vector.

A step function takes and returns `Metrics`. It can be read like the documented dict of metrics, but holds a single
array. `update` is plain arithmetic on that array, so a step with a thousand metrics has one metric argument.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trackside.errors import MetricError
from trackside.metrics.layout import MEAN_AS_SUM, NOT_FINITE, MetricLayout
from trackside.metrics.step_metric import StepMetric, add_limbs, add_sums, count_as_float, split_log_modes


@jax.tree_util.register_pytree_node_class
class Metrics(Mapping[str, dict[str, jax.Array]]):
    """Accumulated metrics: a read-only mapping from a metric's name to its `value` (sum) and `count` so far.

    Args:
        layout: The metrics, and their places in the vector.
        vector: The packed accumulator; None for the layout's initial one.
    """

    def __init__(self, layout: MetricLayout, vector: Any = None):
        self.layout = layout
        self.vector = layout.initial if vector is None else vector

    def update(
        self,
        step_metrics: Mapping[str, Any],
        log_modes: Mapping[str, tuple[str, ...]] | None = None,
        finite: jax.Array | bool = True,
        mean_as_sum: jax.Array | bool = False,
    ) -> "Metrics":
        """Add the metrics of one step.

        Args:
            step_metrics: Metrics as a loss function returns them, or already split by `split_log_modes`.
            log_modes: Log modes that were split off before. The layout already contains them.
            finite: Whether the loss and gradients of this step are finite. The accumulator remembers a False.
            mean_as_sum: Whether the step's `loss` metric looks like a mean given as a sum. Remembered likewise.

        Returns:
            The new accumulator.
        """
        del log_modes  # part of the signature that `MetricRecorder` shares
        metrics, _ = split_log_modes(step_metrics)
        if metrics.keys() != set(self.layout.names):
            raise MetricError(
                f"metrics: expected {sorted(self.layout.names)} as in the first trace of the step, "
                f"got {sorted(metrics)}; return the same metrics in every step"
            )
        for spec in self.layout.specs:
            if metrics[spec.name].has_float_count != spec.has_float_count:
                raise MetricError(
                    f"count of metric {spec.name!r}: expected {'a float' if spec.has_float_count else 'an integer'} as "
                    "in the first trace of the step, got the other; use the same type in every step"
                )
        flags = _raised(NOT_FINITE, jnp.logical_not(jnp.asarray(finite))) | _raised(MEAN_AS_SUM, mean_as_sum)
        return Metrics(self.layout, _updated(self.layout, jnp.asarray(self.vector), metrics, flags))

    @property
    def num_steps(self) -> jax.Array:
        """The number of steps that were added since the last reset."""
        return jnp.asarray(self.vector)[1]

    def reset(self) -> "Metrics":
        """The accumulator before any step."""
        return Metrics(self.layout)

    def __getitem__(self, name: str) -> dict[str, jax.Array]:
        index = self.layout.names.index(name) if name in self.layout.names else None
        if index is None:
            raise KeyError(f"no metric {name!r}; available: {', '.join(self.layout.names)}")
        parts = _Parts(self.layout, jnp.asarray(self.vector))
        count = parts.count[:, index]
        if self.layout.specs[index].has_float_count:
            count = _as_float(count)
        return {
            "value": parts.sum[0, index] + parts.sum[1, index],
            "count": count_as_float((count[0], count[1])),
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.names)

    def __len__(self) -> int:
        return len(self.layout.names)

    def __repr__(self) -> str:
        return f"Metrics({', '.join(self.layout.names)})"

    def tree_flatten(self) -> tuple[tuple[Any], MetricLayout]:
        """For jax."""
        return (self.vector,), self.layout

    @classmethod
    def tree_unflatten(cls, layout: MetricLayout, children: tuple[Any]) -> "Metrics":
        """For jax."""
        metrics = object.__new__(cls)
        metrics.layout, (metrics.vector,) = layout, children
        return metrics


class MetricRecorder:
    """Takes the place of `Metrics` while a step is traced for the first time, and records the layout.

    Args:
        default_log_modes: The modes of metrics that set none.
        only_default: Whether to ignore the modes that metrics set, as in evaluation.
    """

    def __init__(self, default_log_modes: tuple[str, ...], only_default: bool = False):
        self.default_log_modes = default_log_modes
        self.only_default = only_default
        self.num_steps: Any = np.uint32(0)
        """The number of steps before, as in `Metrics`."""
        self.updates: tuple[dict[str, Any], ...] = ()
        """What `update` was called with to come here, with the log modes split off."""
        self._first = self
        self._layout: MetricLayout | None = None

    @property
    def layout(self) -> MetricLayout | None:
        """The metrics of the last update since the first recorder, whatever came of it."""
        return self._first._layout

    def begin(self, num_steps: Any) -> "MetricRecorder":
        """What takes the place of metrics that have seen some steps. The layout that it records is found here, too."""
        return self._followed_by(num_steps, ())

    def _followed_by(self, num_steps: Any, updates: tuple[dict[str, Any], ...]) -> "MetricRecorder":
        new = MetricRecorder(self.default_log_modes, self.only_default)
        new.num_steps, new.updates, new._first = num_steps, updates, self._first
        return new

    def update(
        self,
        step_metrics: Mapping[str, Any],
        log_modes: Mapping[str, tuple[str, ...]] | None = None,
        finite: jax.Array | bool = True,
        mean_as_sum: jax.Array | bool = False,
    ) -> "MetricRecorder":
        """Record the metrics of the step."""
        metrics, own_modes = split_log_modes(step_metrics)
        modes = {} if self.only_default else {**own_modes, **(log_modes or {})}
        self._first._layout = MetricLayout.of(metrics, modes, self.default_log_modes)
        update = {"step_metrics": metrics, "finite": finite, "mean_as_sum": mean_as_sum}
        return self._followed_by(self.num_steps + np.uint32(1), (*self.updates, update))


class _Parts:
    """The parts of the vector as arrays of the right type."""

    def __init__(self, layout: MetricLayout, vector: jax.Array):
        part = {name: vector[where] for name, where in layout.slices.items()}
        self.header = part["header"]
        self.last = _as_float(part["last"])
        self.sum = _as_float(part["sum"]).reshape(2, -1)
        self.count = part["count"].reshape(2, -1)
        self.max = _as_float(part["max"])
        self.std_steps = part["std_steps"]
        self.std_mean = _as_float(part["std_mean"])
        self.std_m2 = _as_float(part["std_m2"])


def _updated(layout: MetricLayout, vector: jax.Array, metrics: dict[str, StepMetric], flags: Any) -> jax.Array:
    old = _Parts(layout, vector)
    ordered = [metrics[name] for name in layout.names]
    header = jnp.stack([old.header[0] | flags, old.header[1] + np.uint32(1)])
    if not ordered:
        return header
    step_sum = tuple(jnp.stack([m.value[word] for m in ordered]) for word in (0, 1))
    step_count = tuple(jnp.stack([_as_words(m.num_items[word]) for m in ordered]) for word in (0, 1))
    size = jnp.stack([count_as_float(m.num_items) for m in ordered])
    # A step without items of a metric says nothing about it, and must not cause 0 / 0.
    observed = size > 0
    ratio = (step_sum[0] + step_sum[1]) / jnp.where(observed, size, 1)
    parts = [
        header,
        _as_words(jnp.where(observed, ratio, old.last)),
        *(_as_words(word) for word in add_sums((old.sum[0], old.sum[1]), (step_sum[0], step_sum[1]))),
        *_added_counts(layout, (old.count[0], old.count[1]), (step_count[0], step_count[1])),
    ]
    if len(layout.max_indices):
        chosen, seen = ratio[layout.max_indices], observed[layout.max_indices]
        parts.append(_as_words(jnp.where(seen, jnp.maximum(old.max, chosen), old.max)))
    if len(layout.std_indices):
        parts += _welford(old, ratio[layout.std_indices], observed[layout.std_indices])
    return jnp.concatenate(parts)


def _raised(flag: int, condition: jax.Array | bool) -> jax.Array:
    return jnp.where(condition, np.uint32(flag), np.uint32(0))


def _added_counts(layout: MetricLayout, old: tuple, step: tuple) -> tuple[jax.Array, jax.Array]:
    high, low = add_limbs(old, step)
    floats = layout.float_count_indices
    if len(floats):
        total = add_sums(
            (_as_float(old[0][floats]), _as_float(old[1][floats])),
            (_as_float(step[0][floats]), _as_float(step[1][floats])),
        )
        high, low = high.at[floats].set(_as_words(total[0])), low.at[floats].set(_as_words(total[1]))
    return high, low


def _welford(old: _Parts, value: jax.Array, observed: jax.Array) -> list[jax.Array]:
    """Welford's update: E[x^2] - E[x]^2 would lose all digits in float32 if the mean is large."""
    steps = old.std_steps + observed.astype(jnp.uint32)
    delta = value - old.std_mean
    mean = old.std_mean + delta / jnp.maximum(steps, 1).astype(jnp.float32)
    m2 = old.std_m2 + delta * (value - mean)
    return [
        steps,
        _as_words(jnp.where(observed, mean, old.std_mean)),
        _as_words(jnp.where(observed, m2, old.std_m2)),
    ]


def _as_words(array: jax.Array) -> jax.Array:
    return array if array.dtype == jnp.uint32 else jax.lax.bitcast_convert_type(array, jnp.uint32)


def _as_float(words: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(words, jnp.float32)
