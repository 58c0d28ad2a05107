"""What devices can do at most, as their vendors state it: the denominators of utilization.

Figures are dense (no structured sparsity), for one device as JAX counts them. On TPU v2, v3 and TPU7x that is one of
the chip's two TensorCores, on MI250X one of two dies, so that half of the data sheet's figure stands here. A device or
a type of number that is not in the table has no known peak: it can be measured instead
(`trackside.profiling.calibrate`), but is never guessed.

`float32` is the figure without tensor cores on NVIDIA devices and that of the matrix cores on AMD's. From A100 on, JAX
multiplies float32 matrices in TF32 unless told otherwise; the peak to compare with is then that of `tf32`. On TPUs, it
uses bfloat16 passes; Google states no figure for float32.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Peak:
    """The most that one device can do."""

    device_kind: str
    """The device, as `jax.Device.device_kind` names it."""
    dtype: str
    """The type of the numbers that are multiplied."""
    flops_per_s: float
    """Floating-point operations per second in matrix products, a multiply-add counting as two."""
    memory_bytes_per_s: float | None
    """Bandwidth of the device's memory; None where it is not known."""
    source: str
    """The data sheet that says so, or `calibrated` for a measured peak."""
    flops_per_s_range: tuple[float, float] | None = None
    """The range that holds `flops_per_s`, the median of several measurements; None for a data sheet."""


@dataclass(frozen=True)
class DataSheet:
    """What a vendor states about some kinds of devices."""

    kinds: tuple[str, ...]
    tera_flops: dict[str, float]
    giga_bytes: float
    source: str


def _half_precision(value: float) -> dict[str, float]:
    return {"bfloat16": value, "float16": value}


_CLOUD_TPU = "Google Cloud TPU documentation"

DEVICES = (
    # NVIDIA. Data sheets from H100 on give tensor core figures with sparsity; half of those stand here.
    DataSheet(
        ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"),
        {"float16": 125, "float32": 15.7},
        900,
        "NVIDIA V100 data sheet, SXM2",
    ),
    DataSheet(
        ("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"),
        {"float16": 112, "float32": 14},
        900,
        "NVIDIA V100 data sheet, PCIe",
    ),
    DataSheet(
        ("A100-SXM4-40GB", "A100-PCIE-40GB"),
        {**_half_precision(312), "tf32": 156, "float32": 19.5},
        1555,
        "NVIDIA A100 data sheet, 40 GB",
    ),
    DataSheet(
        ("A100-SXM4-80GB",),
        {**_half_precision(312), "tf32": 156, "float32": 19.5},
        2039,
        "NVIDIA A100 data sheet, 80 GB SXM",
    ),
    DataSheet(
        ("A100 80GB PCIe",),
        {**_half_precision(312), "tf32": 156, "float32": 19.5},
        1935,
        "NVIDIA A100 data sheet, 80 GB PCIe",
    ),
    DataSheet(
        ("H100 80GB HBM3",),
        {**_half_precision(989.5), "tf32": 494.5, "float32": 67},
        3350,
        "NVIDIA H100 data sheet, SXM",
    ),
    DataSheet(
        ("H100 PCIe",),
        {**_half_precision(756.5), "tf32": 378, "float32": 51},
        2000,
        "NVIDIA H100 data sheet, PCIe",
    ),
    DataSheet(
        ("H200",),
        {**_half_precision(989.5), "tf32": 494.5, "float32": 67},
        4800,
        "NVIDIA H200 data sheet, SXM",
    ),
    DataSheet(
        ("B200",),
        {**_half_precision(2250), "tf32": 1100, "float32": 80},
        8000,
        "NVIDIA Blackwell architecture technical brief, HGX B200",
    ),
    DataSheet(
        ("L4",),
        {**_half_precision(121), "tf32": 60, "float32": 30.3},
        300,
        "NVIDIA L4 data sheet",
    ),
    DataSheet(
        ("L40S",),
        {**_half_precision(362.05), "tf32": 183, "float32": 91.6},
        864,
        "NVIDIA L40S data sheet",
    ),
    DataSheet(
        ("GeForce RTX 4090",),
        {**_half_precision(165.2), "tf32": 82.6, "float32": 82.6},
        1008,
        "NVIDIA Ada architecture white paper, float32 accumulation",
    ),
    # AMD.
    DataSheet(
        ("AMD Instinct MI250X",),
        {**_half_precision(191.5), "float32": 47.85},
        1638,
        "AMD Instinct MI250X data sheet, one of two dies",
    ),
    DataSheet(
        ("AMD Instinct MI300X",),
        {**_half_precision(1307.4), "tf32": 653.7, "float32": 163.4},
        5300,
        "AMD Instinct MI300X data sheet",
    ),
    # Google.
    DataSheet(("TPU v2",), {"bfloat16": 23}, 350, "Google, CACM 63(7), 2020, v2, one of two TensorCores"),
    DataSheet(("TPU v3",), {"bfloat16": 61.5}, 450, f"{_CLOUD_TPU}, v3, one of two TensorCores"),
    DataSheet(("TPU v4",), {"bfloat16": 275}, 1200, f"{_CLOUD_TPU}, v4"),
    DataSheet(("TPU v5 lite", "TPU v5e"), {"bfloat16": 197}, 819, f"{_CLOUD_TPU}, v5e"),
    DataSheet(("TPU v5", "TPU v5p"), {"bfloat16": 459}, 2765, f"{_CLOUD_TPU}, v5p"),
    DataSheet(("TPU v6 lite", "TPU v6e"), {"bfloat16": 918}, 1638, f"{_CLOUD_TPU}, v6e"),
    DataSheet(("TPU7x",), {"bfloat16": 1153.5}, 3690, f"{_CLOUD_TPU}, TPU7x (Ironwood), one of two TensorCores"),
)

_BY_KIND = {kind.lower(): device for device in DEVICES for kind in device.kinds}
_SHORT_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "f16": "float16", "f32": "float32"}


def known_peak(device_kind: str, dtype: Any = "bfloat16") -> Peak | None:
    """The stated peak of a kind of device.

    Args:
        device_kind: `jax.Device.device_kind`, such as `NVIDIA H100 80GB HBM3` or `TPU v5 lite`.
        dtype: What is multiplied: a type or its name, or `tf32`.

    Returns:
        The peak of one device; None where the table does not have it.
    """
    dtype = dtype_name(dtype)
    # Older drivers leave the maker's name out.
    device = _BY_KIND.get(device_kind.strip().lower().removeprefix("nvidia "))
    if device is None or dtype not in device.tera_flops:
        return None
    return Peak(device_kind, dtype, device.tera_flops[dtype] * 1e12, device.giga_bytes * 1e9, device.source)


def dtype_name(dtype: Any) -> str:
    """The name of a type of numbers, however it is given."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    return _SHORT_NAMES.get(name, name)
