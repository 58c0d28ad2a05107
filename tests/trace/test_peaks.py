import jax.numpy as jnp
import numpy as np
import pytest

from trackside.trace.peaks import DEVICES, known_peak


@pytest.mark.parametrize(
    ("device_kind", "dtype", "tera_flops", "giga_bytes"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5, 3350),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156, 2039),
        ("A100-SXM4-40GB", "float32", 19.5, 1555),
        ("Tesla V100-SXM2-16GB", "float16", 125, 900),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2, 1008),
        ("AMD Instinct MI300X", "bfloat16", 1307.4, 5300),
        ("TPU v5 lite", "bfloat16", 197, 819),
        ("TPU v6 lite", "bfloat16", 918, 1638),
    ],
)
def test_the_peak_of_a_device_is_that_of_its_data_sheet(device_kind, dtype, tera_flops, giga_bytes):
    """Devices are found by the name that JAX gives them, also without the maker's name."""
    peak = known_peak(device_kind, dtype)
    assert peak is not None
    assert (peak.flops_per_s, peak.memory_bytes_per_s) == pytest.approx((tera_flops * 1e12, giga_bytes * 1e9))


@pytest.mark.parametrize("device_kind", ["cpu", "NVIDIA H100", "TPU v99", ""])
def test_an_unknown_device_has_no_peak(device_kind):
    """A name that is not in the table is not matched to one that looks like it."""
    assert known_peak(device_kind) is None


def test_an_unsupported_type_has_no_peak():
    """What a device's data sheet has no figure for is not guessed from another type."""
    assert known_peak("Tesla V100-SXM2-16GB", "bfloat16") is None
    assert known_peak("TPU v4", "float32") is None


@pytest.mark.parametrize("dtype", ["bf16", "bfloat16", jnp.bfloat16, np.dtype(jnp.bfloat16)])
def test_a_type_may_be_given_in_any_form(dtype):
    """Names, short names and types of numpy and JAX mean the same."""
    assert known_peak("TPU v4", dtype) == known_peak("TPU v4", "bfloat16")


@pytest.mark.parametrize("device_kind", [kind for device in DEVICES for kind in device.kinds])
def test_every_row_is_complete(device_kind):
    """Each device has some half-precision figure, a bandwidth and a source."""
    peak = known_peak(device_kind, "bfloat16") or known_peak(device_kind, "float16")
    assert peak is not None
    assert peak.source
    assert peak.memory_bytes_per_s


def test_half_of_a_chip_is_what_jax_calls_a_device():
    """On chips that JAX shows as two devices, the peak is that of one of them."""
    peak = known_peak("TPU v3")
    assert peak is not None
    assert peak.flops_per_s == pytest.approx(123e12 / 2)
