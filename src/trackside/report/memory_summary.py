"""What filled the memory of a run, from the samples of a memory profiler."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NOT_BYTES = ("num_arrays",)


@dataclass(frozen=True)
class DevicePeak:
    """The most that a device held."""

    peak_bytes: int
    limit_bytes: int | None
    """What it has; None if the device does not report it."""


@dataclass(frozen=True)
class MemorySummary:
    """Peaks over the samples of a run. What was not measured is absent, not zero."""

    num_samples: int
    host_peak_bytes: int | None
    """The most that the process held, resident."""
    devices: dict[str, DevicePeak]
    """By device; empty for devices that do not report memory, such as CPUs."""
    owners: dict[str, int]
    """Bytes of live arrays by owner, in the sample that had the most."""
    owners_step: int | None
    """The step of that sample."""
    leaks: list[dict[str, Any]]
    """What kept growing: `name`, `bytes_per_step`, `since_step`; the last row for each name."""


def summarise_memory(rows: Sequence[Mapping[str, Any]], leaks: Sequence[Mapping[str, Any]]) -> MemorySummary | None:
    """Summarise the `memory` rows of a run; None without any.

    Args:
        rows: The rows `memory`, in order.
        leaks: The rows `memory_leak`, in order.
    """
    if not rows:
        return None
    fullest = max(rows, key=lambda row: sum(_owners(row).values()))
    host = [peak for row in rows if (peak := (row.get("host") or {}).get("peak_rss_bytes")) is not None]
    wanted = ("name", "bytes_per_step", "since_step")
    last_leaks = {row.get("name"): {name: row.get(name) for name in wanted} for row in leaks}
    return MemorySummary(
        len(rows),
        max(host, default=None),
        _device_peaks(rows),
        dict(sorted(_owners(fullest).items(), key=lambda item: -item[1])),
        fullest.get("step"),
        list(last_leaks.values()),
    )


def _owners(row: Mapping[str, Any]) -> dict[str, int]:
    return {owner: number for owner, number in (row.get("live") or {}).items() if owner not in _NOT_BYTES}


def _device_peaks(rows: Sequence[Mapping[str, Any]]) -> dict[str, DevicePeak]:
    peaks: dict[str, DevicePeak] = {}
    for row in rows:
        for device, figures in (row.get("memory") or {}).items():
            peak = figures.get("peak_bytes_in_use", figures.get("bytes_in_use", 0))
            before = peaks.get(device)
            peaks[device] = DevicePeak(max(peak, before.peak_bytes if before else 0), figures.get("bytes_limit"))
    return peaks
