"""How fast the device at hand multiplies matrices, measured; and what share of that a training uses.

A peak from a data sheet (`trackside.trace.peaks`) is the better denominator where there is one. A measured peak serves
devices that the table does not have, CPUs above all. It is a matrix product at its best, as JAX runs it: float32 at the
default precision, which is TF32 on recent GPUs.

What a machine can do varies with what else it does: two measurements of a busy CPU may differ by a factor of two. So it
is measured several times, one after the other, and a peak carries the range that its median is in. Each measurement is
the best of several short rounds, since a busy processor is given away every few milliseconds.
"""

import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import ConfigError
from trackside.trace.peaks import Peak, dtype_name

CALIBRATED = "calibrated"
"""The source of a peak that was measured."""

_SIZES = (256, 512, 1024, 2048, 4096, 8192)
_TILE = 256
_NUM_TRIES = 4
"""Rounds by which the size is chosen."""
_NUM_MEASUREMENTS = 9
_NUM_ROUNDS = 10
"""Rounds of each measurement, the best of which counts."""
_ROUND_S = 0.005
_MAX_CALLS = 64


def calibrate_peak(
    device: Any = None,
    dtype: Any = "float32",
    *,
    budget_s: float = 1.0,
    clock: Clock = SYSTEM_CLOCK,
) -> Peak:
    """Measure the peak of a device by multiplying square matrices of growing size.

    The device should be idle meanwhile. The devices of one host's CPU share its cores, so that the peak of one is that
    of all of them.

    Args:
        device: The device, one of `jax.devices()`; the first one if left out.
        dtype: The type of what is multiplied.
        budget_s: About how long it may take. Sizes with which it would take longer are left out.
        clock: What measures.

    Returns:
        That of the fastest size, with `source="calibrated"` and without a bandwidth: the median of several
        measurements, and the range that holds it with a confidence of 96 %.

    Raises:
        ConfigError: JAX does not multiply this type in floating point.
    """
    name = _checked_dtype(dtype)
    device = jax.devices()[0] if device is None else device
    fastest = _fastest_size(device, name, budget_s, clock)
    found = sorted(_measure(fastest, _NUM_ROUNDS, clock)[1] for _ in range(_NUM_MEASUREMENTS))
    # Of nine, the second from either end hold the median with a confidence of 96 %, whatever the distribution.
    return Peak(device.device_kind, name, statistics.median(found), None, CALIBRATED, (found[1], found[-2]))


def _fastest_size(device: Any, dtype: str, budget_s: float, clock: Clock) -> jax.Array:
    """The matrix that is multiplied at the highest rate, of those for which there is time."""
    start_s, tried = clock.now(), []
    for size in _SIZES:
        operand = _operand(size, dtype, device)
        jax.block_until_ready(_multiply(operand, operand))  # compiles
        call_s, flops_per_s = _measure(operand, _NUM_TRIES, clock)
        tried.append((flops_per_s, operand))
        # The next size takes eight times as long, to try it and to measure with it.
        next_s = 8 * call_s * (1 + _NUM_TRIES) + _NUM_MEASUREMENTS * _NUM_ROUNDS * max(8 * call_s, _ROUND_S)
        if clock.now() - start_s + next_s > budget_s:
            break
    return max(tried, key=lambda one: one[0])[1]


def model_flops_utilisation(flops_per_step: float, step_time_s: float, peak: Peak, num_devices: int = 1) -> float:
    """The share of the devices' peak that a training uses for what its model asks for.

    Args:
        flops_per_step: Operations per step on all devices: `FlopTable.model_flops`, which leaves recomputation out.
        step_time_s: Wall time of a step.
        peak: The peak of one device.
        num_devices: How many devices the step runs on; 1 for all devices of a CPU with a measured peak.

    Returns:
        The utilization, 1 being all that the devices can do.

    Raises:
        ConfigError: If the time or the number of devices is not positive.
    """
    if not step_time_s > 0:
        raise ConfigError(f"step_time_s: expected a positive number of seconds, got {step_time_s}")
    if num_devices < 1:
        raise ConfigError(f"num_devices: expected at least one device, got {num_devices}")
    return flops_per_step / step_time_s / (peak.flops_per_s * num_devices)


def _checked_dtype(dtype: Any) -> str:
    name = dtype_name(dtype)
    if name == "tf32":
        raise ConfigError("dtype: JAX has no type tf32; calibrate float32, which uses it on devices that have it")
    try:
        is_float = jnp.issubdtype(jnp.dtype(name), jnp.floating)
    except TypeError:
        is_float = False
    if not is_float:
        raise ConfigError(f"dtype: expected a floating-point type such as float32 or bfloat16, got {dtype!r}")
    return name


@jax.jit
def _multiply(a: jax.Array, b: jax.Array) -> jax.Array:
    return a @ b


def _operand(size: int, dtype: str, device: Any) -> jax.Array:
    # Not constant: some devices are faster on zeros. A repeated tile is random enough and quickly made.
    tile = np.random.default_rng(0).standard_normal((_TILE, _TILE), np.float32).astype(jnp.dtype(dtype))
    return jax.device_put(np.tile(tile, (size // _TILE, size // _TILE)), device)


def _measure(operand: jax.Array, num_rounds: int, clock: Clock) -> tuple[float, float]:
    """Seconds of one product, and the most operations per second of several rounds."""
    call_s = _time_calls(operand, 1, clock)
    num_calls = int(min(max(_ROUND_S / max(call_s, 1e-9), 1), _MAX_CALLS))
    best_s = min(_time_calls(operand, num_calls, clock) for _ in range(num_rounds)) / num_calls
    return call_s, 2 * operand.shape[0] ** 3 / max(min(best_s, call_s), 1e-9)


def _time_calls(operand: jax.Array, num_calls: int, clock: Clock) -> float:
    """Seconds until as many products are done; they are queued together, so that dispatching them costs nothing."""
    start = clock.now()
    result = operand
    for _ in range(num_calls):
        result = _multiply(operand, operand)
    jax.block_until_ready(result)
    return clock.now() - start
