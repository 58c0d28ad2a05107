"""The metrics of one step: as users write them, and in the form that crosses jit.

A step metric is a number, or `{"value": v, "count": n, "log_modes": [...]}` where `value` is a sum over `n` items.
The log modes are strings, which cannot leave `grad`, `scan` or `jit`. So they are separated from the arrays as soon as
the loss returns them. What remains is a `StepMetric`: a compensated sum and an exact count, which can be added up over
microbatches.
"""

import numbers
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from trackside.errors import MetricError

LOG_MODES = ("mean", "mean_nopostfix", "single", "max", "std")
"""The ways in which a metric can be logged."""
_UINT32_MAX = 2**32 - 1


class StepMetric(NamedTuple):
    """A sum and a count, each in two words.

    The value is the sum of a pair of float32. The number of items is a pair of uint32 limbs (high, low) if it was given
    as an integer, so that it stays exact beyond 2^31, and a pair of float32 if it was given as a float.
    """

    value: tuple[jax.Array, jax.Array]
    num_items: tuple[jax.Array, jax.Array]

    @property
    def has_float_count(self) -> bool:
        """Whether the count was given as a float, such as a sum of weights."""
        return jnp.issubdtype(self.num_items[0].dtype, jnp.floating)


def check_log_modes(modes: Any, where: str) -> tuple[str, ...]:
    """The log modes as a tuple.

    Args:
        modes: What a user gave as log modes.
        where: What the modes belong to, for the error.

    Raises:
        MetricError: If they are not a list of log modes.
    """
    if isinstance(modes, str) or not isinstance(modes, Sequence):
        raise MetricError(f"{where}: expected a list of the log modes {', '.join(LOG_MODES)}, got {modes!r}")
    for mode in modes:
        if mode not in LOG_MODES:
            raise MetricError(f"{where}: unknown log mode {mode!r}; the modes are {', '.join(LOG_MODES)}")
    return tuple(dict.fromkeys(modes))


def split_log_modes(metrics: Any) -> tuple[dict[str, StepMetric], dict[str, tuple[str, ...]]]:
    """Separate the metrics of a step into arrays, which can cross jit, and log modes, which cannot.

    Args:
        metrics: Step metrics as a loss function returns them.

    Returns:
        The metrics by name, and the log modes of those metrics that set any.
    """
    if not isinstance(metrics, Mapping):
        raise MetricError(
            f"metrics: expected a dict of step metrics, got {type(metrics).__name__}; "
            "return loss, (metrics, mutable_variables) from loss_function"
        )
    arrays, modes = {}, {}
    for name, metric in metrics.items():
        if not isinstance(name, str) or not name:
            raise MetricError(f"metrics: expected strings as names, such as 'accuracy', got {name!r}")
        if isinstance(metric, StepMetric):
            arrays[name] = metric
            continue
        value, count, log_modes = _parts(name, metric)
        arrays[name] = _step_metric(name, value, count)
        if log_modes is not None:
            modes[name] = check_log_modes(log_modes, f"log_modes of metric {name!r}")
    return arrays, modes


def _parts(name: str, metric: Any) -> tuple[Any, Any, Any]:
    if not isinstance(metric, Mapping):
        return metric, 1, None
    unknown = metric.keys() - {"value", "count", "log_modes"}
    if unknown or "value" not in metric:
        raise MetricError(
            f"metric {name!r}: expected a number or a dict with value, count and log_modes, got keys {list(metric)}"
        )
    return metric["value"], metric.get("count", 1), metric.get("log_modes")


def _step_metric(name: str, value: Any, count: Any) -> StepMetric:
    total, num_items = _split_value(name, value), _split_count(name, count)
    if not _host_integer(count):
        # A sum over no items is 0, even if the loss computed 0 / 0.
        has_items = count_as_float(num_items) > 0
        total = jnp.where(has_items, total[0], 0), jnp.where(has_items, total[1], 0)
    return StepMetric(total, num_items)


def _host_integer(value: Any) -> int | None:
    """The number if it is an integer on the host, where it may have more bits than on the device; otherwise None."""
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None


def _scalar(name: str, part: str, value: Any) -> jax.Array:
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise MetricError(f"{part} of metric {name!r}: expected a scalar, got {value!r}") from error
    if array.shape != ():
        raise MetricError(
            f"{part} of metric {name!r}: expected a scalar, got an array of shape {array.shape}; "
            "sum it and give the number of items as its count"
        )
    if jnp.issubdtype(array.dtype, jnp.complexfloating) or not (
        jnp.issubdtype(array.dtype, jnp.number) or array.dtype == jnp.bool_
    ):
        raise MetricError(f"{part} of metric {name!r}: expected a real number, got dtype {array.dtype}")
    return array


def _split_value(name: str, value: Any) -> tuple[jax.Array, jax.Array]:
    integer = _host_integer(value)
    if integer is not None:
        if abs(integer) >= 2**64:
            raise MetricError(f"value of metric {name!r}: expected a number below 2^64, got {integer}")
        high = np.float32(integer)
        return jnp.asarray(high), jnp.asarray(np.float32(integer - int(high)))
    array = _scalar(name, "value", value)
    if jnp.issubdtype(array.dtype, jnp.integer) and array.dtype.itemsize > 2:
        # An int32 beyond 2^24 does not fit into one float32, but its upper and lower bits do.
        low_bits = array & array.dtype.type(0xFFF)
        return (array - low_bits).astype(jnp.float32), low_bits.astype(jnp.float32)
    high = array.astype(jnp.float32)
    if array.dtype == jnp.float64:
        return high, (array - high.astype(jnp.float64)).astype(jnp.float32)
    return high, jnp.zeros((), jnp.float32)


def _split_count(name: str, count: Any) -> tuple[jax.Array, jax.Array]:
    integer = _host_integer(count)
    if integer is not None:
        if not 0 <= integer < 2**64:
            raise MetricError(f"count of metric {name!r}: expected a number of items, got {count}")
        high, low = divmod(integer, 2**32)
        return jnp.asarray(np.uint32(high)), jnp.asarray(np.uint32(low))
    array = _scalar(name, "count", count)
    if jnp.issubdtype(array.dtype, jnp.floating):
        high, low = _split_value(name, array)
        return high, low
    if array.dtype.itemsize == 8:  # only if 64-bit types are enabled
        wide = array.astype(jnp.uint64)
        return (wide >> np.uint64(32)).astype(jnp.uint32), (wide & np.uint64(_UINT32_MAX)).astype(jnp.uint32)
    return jnp.zeros((), jnp.uint32), array.astype(jnp.uint32)


def count_as_float(count: tuple[jax.Array, jax.Array]) -> jax.Array:
    """A count in either form as float32, for use in a ratio."""
    high, low = count
    if jnp.issubdtype(high.dtype, jnp.floating):
        return high + low
    return high.astype(jnp.float32) * np.float32(2.0**32) + low.astype(jnp.float32)


def add_sums(a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Add two compensated sums. The second word holds the rounding error.

    The second word is carried over into the first, so that it stays small and loses nothing itself.
    """
    total = a[0] + b[0]
    virtual = total - a[0]
    rest = a[1] + b[1] + ((a[0] - (total - virtual)) + (b[0] - virtual))
    carried = total + rest
    # An infinite sum has no rounding error, and inf - inf would be NaN.
    is_finite = jnp.isfinite(total)
    return jnp.where(is_finite, carried, total), jnp.where(is_finite, rest - (carried - total), 0)


def add_limbs(a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Add two counts in uint32 limbs, with the carry."""
    low = a[1] + b[1]
    carry = (low < a[1]).astype(jnp.uint32)
    return a[0] + b[0] + carry, low


def add_step_metrics(a: dict[str, StepMetric], b: dict[str, StepMetric]) -> dict[str, StepMetric]:
    """Add the metrics of two microbatches: values to values, counts to counts."""
    return {
        name: StepMetric(
            add_sums(a[name].value, b[name].value),
            add_sums(a[name].num_items, b[name].num_items)
            if a[name].has_float_count
            else add_limbs(a[name].num_items, b[name].num_items),
        )
        for name in a
    }
