"""When a device did nothing, and what the host did meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trackside.trace.device_events import HOST_PLANE
from trackside.trace.overlap import Timeline
from trackside.trace.tables import Coverage, Gap, GapRow, GapTable
from trackside.trace.xspace import PS_PER_S, Plane, XSpace

BETWEEN, INSIDE = "between runs", "inside runs"
NUM_LARGEST = 10
_RUNTIME_LINES = ("tf_XLA", "tf_pjrt", "tf_Slinky")
_RUNTIME_EVENTS = ("end: ", "ThreadpoolListener::", "ThunkExecutor::", "SlinkyThreadPool::")


@dataclass(frozen=True)
class DeviceTime:
    """What gaps are looked for in."""

    name: str
    host: int
    timeline: Timeline
    window_ps: tuple[int, int]
    """From the first start to the last end of the executions."""
    run_start_ps: np.ndarray
    run_end_ps: np.ndarray


def find_gaps(devices: Sequence[DeviceTime], spaces: Sequence[XSpace], coverage: Coverage) -> GapTable:
    """The gaps of all devices: all of them by kind, the largest one by one."""
    found: dict[str, list[np.ndarray]] = {BETWEEN: [], INSIDE: []}
    largest: list[tuple[float, int, DeviceTime, str]] = []
    for device in devices:
        start, duration, is_inside = _device_gaps(device)
        for kind, chosen in ((BETWEEN, ~is_inside), (INSIDE, is_inside)):
            found[kind].append(duration[chosen])
        for index in np.argsort(-duration, kind="stable")[:NUM_LARGEST].tolist():
            kind = INSIDE if is_inside[index] else BETWEEN
            largest.append((float(duration[index]), int(start[index]), device, kind))
    largest.sort(key=lambda gap: -gap[0])
    hosts = {host: HostActivity.of(spaces[host]) for host in {device.host for device in devices}}
    gaps = []
    for duration, start, device, kind in largest[:NUM_LARGEST]:
        name = hosts[device.host].during(start, start + int(duration))
        gaps.append(Gap(device.name, kind, start / PS_PER_S, duration / PS_PER_S, name))
    return GapTable(tuple(_summarise(kind, parts) for kind, parts in found.items()), tuple(gaps), coverage)


def _summarise(kind: str, parts: list[np.ndarray]) -> GapRow:
    durations = np.concatenate([np.zeros(0), *parts])
    largest = float(durations.max()) if durations.size else 0.0
    return GapRow(kind, float(durations.sum() / PS_PER_S), len(durations), largest / PS_PER_S)


def _device_gaps(device: DeviceTime) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, duration and whether an execution was going on, of each gap in the window."""
    start, end = device.timeline.gaps()
    first, last = device.window_ps
    start, end = np.maximum(start, first), np.minimum(end, last)
    kept = end > start
    start, end = start[kept], end[kept]
    order = np.argsort(device.run_start_ps, kind="stable")
    begun = np.searchsorted(device.run_start_ps[order], start, side="right") - 1
    latest_end = np.maximum.accumulate(device.run_end_ps[order]) if len(order) else np.zeros(1, np.int64)
    return start, end - start, (begun >= 0) & (latest_end[begun] >= end)


@dataclass(frozen=True)
class HostActivity:
    """What a host's threads did, without the runtime's own."""

    plane: Plane | None
    event: np.ndarray
    start_ps: np.ndarray
    end_ps: np.ndarray

    @classmethod
    def of(cls, space: XSpace) -> "HostActivity":
        """The activity in a file."""
        plane = next((plane for plane in space.planes if plane.name == HOST_PLANE), None)
        if plane is None:
            return cls(None, *(np.zeros(0, np.int64) for _ in range(3)))
        events = plane.events
        runtime = [index for index, name in enumerate(plane.line_names) if name.startswith(_RUNTIME_LINES)]
        skipped = [each for each in events.metadata_ids() if plane.metadata(each).name.startswith(_RUNTIME_EVENTS)]
        chosen = ~np.isin(events.line, runtime) & ~np.isin(events.metadata_id, np.array(skipped, np.int64))
        # Operations are the device's, and a step marker names the step, not what was done in it.
        for stat in ("hlo_op", "step_num"):
            chosen[events.with_stat(stat)] = False
        where = np.flatnonzero(chosen)
        return cls(plane, where, events.start_ps[where], events.end_ps[where])

    def during(self, start_ps: int, end_ps: int) -> str:
        """The event that fills most of a stretch; of several that fill it alike, the shortest: the innermost."""
        if self.plane is None or not len(self.event):
            return ""
        overlap = np.minimum(self.end_ps, end_ps) - np.maximum(self.start_ps, start_ps)
        most = int(overlap.max())
        if most <= 0:
            return ""
        candidates = np.flatnonzero(overlap == most)
        shortest = candidates[np.argmin(self.end_ps[candidates] - self.start_ps[candidates])]
        return self.plane.metadata(int(self.plane.events.metadata_id[self.event[shortest]])).name
