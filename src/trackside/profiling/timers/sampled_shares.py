"""What share of a jitted step an operation has, estimated from samples."""

import math
import statistics
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trackside.profiling.timers.durations import DurationSketch

MIN_SAMPLES = 3
"""Nothing is reported before there are this many samples: fewer have no useful interval."""
MAX_SAMPLES = 256
"""How many samples are pooled; older ones are forgotten."""
MAX_IN_PROGRESS = 1.05
"""With no more operations in progress at a time, they run one after the other."""
ALIKE = 2.0
"""Samples that follow each other find the machine in the same state: this factor more are needed to be as certain."""
TRACER_ERROR = 0.05
"""How far off a share may be because the step is traced, as a share of it: tracing slows steps by 2 to 9 %."""

# Quantile 0.975 of Student's t, by degrees of freedom from 1; for more, that of the normal distribution is near.
_STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_NORMAL = 2.0


@dataclass(frozen=True)
class ShareSample:
    """What share of a step an operation had in one sample, by two ways to leave out what disturbed it.

    See `trackside.trace.undisturbed_phases` for what they are.
    """

    of_work: float
    of_wall: float
    num_in_progress: float
    """How many operations were in progress at a time."""


@dataclass(frozen=True)
class ShareEstimate:
    """A share with its 95 % confidence interval."""

    share: float
    low: float
    high: float
    num_samples: int


def pool(samples: Sequence[ShareSample]) -> ShareEstimate:
    """Estimate a share from samples.

    The interval holds what each of the two ways gives for all samples together, since each is wrong at times. It is
    never narrower than the tracer is accurate.

    Args:
        samples: The samples. At least two.
    """
    of_work, of_wall = [sample.of_work for sample in samples], [sample.of_wall for sample in samples]
    is_sequential = statistics.median(sample.num_in_progress for sample in samples) <= MAX_IN_PROGRESS
    # The median, since a sample in which one operation was always disturbed is far off.
    share = statistics.median(of_wall if is_sequential else of_work)
    intervals = [_interval_of_mean(shares) for shares in (of_work, of_wall)]
    low = min(share * (1.0 - TRACER_ERROR), *(low for low, _ in intervals))
    high = max(share * (1.0 + TRACER_ERROR), *(high for _, high in intervals))
    return ShareEstimate(share, max(low, 0.0), min(high, 1.0), len(samples))


def _interval_of_mean(values: Sequence[float]) -> tuple[float, float]:
    number = len(values)
    quantile = _STUDENT_T[number - 2] if number - 2 < len(_STUDENT_T) else _NORMAL
    width = quantile * statistics.stdev(values) * math.sqrt(ALIKE / number)
    return statistics.fmean(values) - width, statistics.fmean(values) + width


class SampledShare:
    """The samples of one operation, and what the steps took that contain it.

    Args:
        name: What the operation is called.
        steps: What the steps took, without those that compiled something.
        source: What takes the samples.
    """

    def __init__(self, name: str, steps: DurationSketch, source: "SampleSource | None" = None):
        self.name = name
        self.steps = steps
        self._source = None if source is None else weakref.ref(source)
        self._samples: deque[ShareSample] = deque(maxlen=MAX_SAMPLES)

    @property
    def source(self) -> "SampleSource | None":
        """What takes the samples; None when it no longer exists."""
        return None if self._source is None else self._source()

    @property
    def num_samples(self) -> int:
        """How many samples there are."""
        return len(self._samples)

    def add(self, sample: ShareSample) -> None:
        """Add a sample."""
        self._samples.append(sample)

    def estimate(self) -> ShareEstimate:
        """The share by all samples. There have to be two at least."""
        return pool(list(self._samples))


class SampleSource(Protocol):
    """What takes samples of a step, in the background."""

    step_name: str
    """What the step is called."""

    def finish(self, timeout_s: float | None) -> bool:
        """End a sample that is being taken and wait for its result; whether that came in time."""
        ...


class SampledShares:
    """The operations of a profiler that have to be sampled, by name."""

    def __init__(self) -> None:
        self.num_clears = 0
        """How often `clear` was called; when that has changed, nothing is expected any more."""
        self._shares: dict[str, SampledShare] = {}
        self._sources: weakref.WeakSet[SampleSource] = weakref.WeakSet()
        self._lock = threading.Lock()

    def add_source(self, source: SampleSource) -> None:
        """Register what takes samples, for as long as it exists."""
        self._sources.add(source)

    def finish(self, timeout_s: float | None) -> bool:
        """End the samples that are being taken and wait for their results; whether they came in time."""
        are_over = [source.finish(timeout_s) for source in list(self._sources)]
        return all(are_over)

    def forget(self, share: SampledShare) -> None:
        """Stop expecting an operation."""
        with self._lock:
            if self._shares.get(share.name) is share:
                del self._shares[share.name]

    def expect(self, name: str, steps: DurationSketch, source: SampleSource | None = None) -> SampledShare:
        """The samples of an operation. A new one is registered.

        If another step in use has an operation of that name, this one's is prefixed with the name of its step.

        Args:
            name: What the operation is called.
            steps: What the steps took that contain it.
            source: What takes the samples.
        """
        with self._lock:
            other = self._shares.get(name)
            other_source = None if other is None or other.steps is steps else other.source
            if source is not None and other_source is not None and other_source.step_name != source.step_name:
                name = f"{source.step_name}_{name}"
            share = self._shares.get(name)
            if share is None or share.steps is not steps:
                share = self._shares[name] = SampledShare(name, steps, source)
            return share

    def step_name(self, name: str) -> str | None:
        """The name of the step that an operation is part of; None if that step no longer exists."""
        with self._lock:
            source = self._shares[name].source
        return None if source is None else source.step_name

    def found(self) -> list[SampledShare]:
        """Those with enough samples."""
        with self._lock:
            return [
                share
                for share in self._shares.values()
                if share.num_samples >= MIN_SAMPLES and share.steps.summarise().count
            ]

    def awaited(self) -> list[str]:
        """The names of the others."""
        found = {share.name for share in self.found()}
        with self._lock:
            return [name for name in self._shares if name not in found]

    def clear(self) -> None:
        """Forget the samples and what is expected. A source that is used again says again what it expects."""
        with self._lock:
            for share in self._shares.values():
                share.steps.clear()
            self._shares.clear()
            self.num_clears += 1
