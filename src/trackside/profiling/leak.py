"""Memory that grows and does not come back: found in noisy samples, and reported with its slope.

What is looked at is the floor of the memory, the lowest of several samples: validations, checkpoints and garbage raise
a sample, but only what is kept raises the floor. A leak has a floor that rises all the time, so neither a warm-up nor a
single jump counts as a leak. The last few samples are kept at full resolution and the whole run ever more thinly. So
both a leak that begins late and one that hides in noise are found, in memory that does not grow.
"""

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trackside import text
from trackside.profiling.memory import LOOP

NUM_RECENT = 24
"""Samples that are kept at full resolution, and the fewest that can show a leak."""
MAX_POINTS = 64
_NUM_SEGMENTS = 6
_MIN_SHARE_OF_RISE = 0.5
"""How much of the mean rise each part of the time must have; less is a warm-up, or a jump."""
_MIN_SIGNAL_TO_NOISE = 8.0

Point = tuple[int, float]


@dataclass(frozen=True)
class Tolerance:
    """Growth that is not worth reporting."""

    min_bytes: int
    """Growth below this number of bytes."""
    min_share: float
    """Growth below this share of what is in use."""


# Live arrays are counted exactly; what allocators and the system report fluctuates.
LIVE_TOLERANCE = Tolerance(1 << 10, 0.0)
DEVICE_TOLERANCE = Tolerance(1 << 20, 0.01)
HOST_TOLERANCE = Tolerance(16 << 20, 0.02)


@dataclass(frozen=True)
class Leak:
    """Memory that grows."""

    name: str
    """What grows, such as `other live arrays`."""
    bytes_per_step: float
    """How fast."""
    since_step: int
    """The first step that was looked at."""

    def __str__(self) -> str:
        grow = "grow" if self.name.endswith("s") else "grows"
        per_100 = text.num_bytes(100 * self.bytes_per_step)
        return f"{self.name} {grow} by {per_100} per 100 steps since step {self.since_step}"


class SeriesWatch:
    """Watches one figure.

    Args:
        tolerance: Growth that is ignored.
    """

    def __init__(self, tolerance: Tolerance):
        self._tolerance = tolerance
        self._recent: deque[Point] = deque(maxlen=NUM_RECENT)
        self._floors: list[Point] = []
        self._group: list[Point] = []
        self._group_size = 1

    def add(self, step: int, num_bytes: float) -> tuple[float, int] | None:
        """Take a sample.

        Returns:
            Slope in bytes per step, and the step since when, if the figure is growing; else None.
        """
        point = (step, float(num_bytes))
        self._recent.append(point)
        self._group.append(point)
        if len(self._group) < self._group_size:
            return find_growth(self._recent, self._tolerance)
        self._floors.append(_floor(self._group))
        self._group = []
        if len(self._floors) >= MAX_POINTS:
            self._floors = [_floor(self._floors[at : at + 2]) for at in range(0, len(self._floors), 2)]
            self._group_size *= 2
        return find_growth(self._recent, self._tolerance) or find_growth(self._floors, self._tolerance)


class LeakWatch:
    """Watches the samples of a training, and reports each leak once.

    What live arrays explain is not reported again for the device or host that they are on.
    """

    def __init__(self) -> None:
        self._watches: dict[str, SeriesWatch] = {}
        self._named: set[str] = set()
        self._live_bytes_per_step = 0.0

    def add(self, sample: Mapping[str, Any]) -> list[Leak]:
        """Take a sample, as `MemorySampler` gives it.

        Returns:
            The leaks that were found with it.
        """
        leaks = []
        for name, num_bytes, tolerance in _series(sample):
            if name in self._named:
                continue
            watch = self._watches.setdefault(name, SeriesWatch(tolerance))
            growth = watch.add(sample["step"], num_bytes)
            if growth is None:
                continue
            bytes_per_step, since_step = growth
            is_live = tolerance is LIVE_TOLERANCE
            if not is_live and bytes_per_step < 2 * self._live_bytes_per_step:
                continue
            self._live_bytes_per_step += bytes_per_step if is_live else 0.0
            self._named.add(name)
            del self._watches[name]
            leaks.append(Leak(name, bytes_per_step, since_step))
        return leaks


def _series(sample: Mapping[str, Any]) -> Iterator[tuple[str, int, Tolerance]]:
    """The figures to watch, the most informative first."""
    for owner, num_bytes in sample["live"].items():
        if owner not in ("num_arrays", LOOP):
            yield f"{owner} live arrays", num_bytes, LIVE_TOLERANCE
    for device, figures in sample["memory"].items():
        yield f"memory in use on {device}", figures["bytes_in_use"], DEVICE_TOLERANCE
    if "private_bytes" in sample["host"]:  # mapped files come and go as the system decides
        yield "host memory", sample["host"]["private_bytes"], HOST_TOLERANCE


def find_growth(points: Sequence[Point], tolerance: Tolerance) -> tuple[float, int] | None:
    """Whether a figure grows all the time.

    Args:
        points: Steps and bytes, in order.
        tolerance: Growth that is ignored.

    Returns:
        Slope in bytes per step, and the first step; None if it does not grow, or there are too few points.
    """
    if len(points) < NUM_RECENT or not _rises_throughout([num_bytes for _, num_bytes in points]):
        return None
    steps, values = np.array(points, np.float64).T
    slope = theil_sen(steps, values)
    growth = slope * (steps[-1] - steps[0])
    residuals = values - slope * steps
    noise = float(np.median(np.abs(residuals - np.median(residuals))))
    least = max(tolerance.min_bytes, tolerance.min_share * float(np.median(values)), _MIN_SIGNAL_TO_NOISE * noise)
    return (slope, int(steps[0])) if growth >= least else None


def theil_sen(steps: np.ndarray, values: np.ndarray) -> float:
    """The median of the slopes between all pairs of points, which a third of bad points does not move."""
    first, second = np.triu_indices(len(steps), 1)
    return float(np.median((values[second] - values[first]) / (steps[second] - steps[first])))


def _rises_throughout(values: Sequence[float]) -> bool:
    """Whether the floor rises in every part of the time, by about as much."""
    cuts = [len(values) * part // _NUM_SEGMENTS for part in range(_NUM_SEGMENTS + 1)]
    floors = [min(values[start:end]) for start, end in itertools.pairwise(cuts)]
    rises = [after - before for before, after in itertools.pairwise(floors)]
    mean_rise = sum(rises) / len(rises)
    return mean_rise > 0 and min(rises) >= _MIN_SHARE_OF_RISE * mean_rise


def _floor(points: Sequence[Point]) -> Point:
    return min(points, key=lambda point: point[1])
