import jax
import jax.numpy as jnp
import pytest

from trackside.clock import ManualClock
from trackside.errors import ConfigError
from trackside.profiling.calibrate import calibrate_peak, model_flops_utilisation
from trackside.trace.peaks import Peak

PEAK = Peak("some device", "float32", 1e12, None, "calibrated")


class TickingClock(ManualClock):
    """A clock that advances by the same time at each reading."""

    def __init__(self, tick_s):
        super().__init__()
        self._tick_s = tick_s

    def now(self):
        self.advance(self._tick_s)
        return super().now()


def test_a_measured_peak_says_what_it_is():
    """It names the device, the type and that it was measured, and claims no bandwidth."""
    device = jax.devices()[1]
    peak = calibrate_peak(device, jnp.bfloat16, budget_s=0)
    assert (peak.device_kind, peak.dtype, peak.source) == (device.device_kind, "bfloat16", "calibrated")
    assert peak.memory_bytes_per_s is None
    assert peak.flops_per_s > 0
    low, high = peak.flops_per_s_range
    assert low <= peak.flops_per_s <= high


class UnevenClock(ManualClock):
    """A clock by which each reading comes a little later than the one before it did."""

    def __init__(self):
        super().__init__()
        self._tick_s = 1.0

    def now(self):
        self._tick_s += 0.01
        self.advance(self._tick_s)
        return super().now()


def test_a_peak_is_the_median_of_several_measurements_with_their_range():
    """On a machine that slows down, neither the first measurement nor the last stands for all."""
    peak = calibrate_peak(clock=UnevenClock())
    low, high = peak.flops_per_s_range
    assert low < peak.flops_per_s < high


def test_the_peak_is_operations_by_time():
    """With a clock by which a product of the only size that fits takes a second, the peak is its operations."""
    assert calibrate_peak(clock=TickingClock(1.0)).flops_per_s == 2 * 256**3


def test_larger_sizes_are_tried_while_the_budget_lasts():
    """With a clock by which any product takes a second, the second size is eight times as fast, and the best."""
    # Trying a size takes 11 readings, and the next one is expected to take 8 seconds for each of 5 + 90 products: this
    # is enough for one more size, and not for two.
    peak = calibrate_peak(clock=TickingClock(1.0), budget_s=775)
    assert (peak.flops_per_s, peak.flops_per_s_range) == (2 * 512**3, (2 * 512**3, 2 * 512**3))


@pytest.mark.parametrize("dtype", ["tf32", "int32", "no_such_type"])
def test_a_type_that_cannot_be_measured_is_refused(dtype):
    """The error names the argument."""
    with pytest.raises(ConfigError, match="dtype"):
        calibrate_peak(dtype=dtype)


def test_utilisation_is_the_share_of_all_devices_peak():
    """One TFLOP in half a second on four devices of one TFLOP/s each is half of what they can do."""
    assert model_flops_utilisation(1e12, 0.5, PEAK, num_devices=4) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("step_time_s", "num_devices", "argument"),
    [(0.0, 1, "step_time_s"), (float("nan"), 1, "step_time_s"), (1.0, 0, "num_devices")],
)
def test_what_makes_no_sense_is_refused(step_time_s, num_devices, argument):
    """The error names the argument."""
    with pytest.raises(ConfigError, match=argument):
        model_flops_utilisation(1e12, step_time_s, PEAK, num_devices)
