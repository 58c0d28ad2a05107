"""How long something took, over any number of times, in bounded memory.

Count, sum, smallest and largest are exact. Quantiles come from a histogram whose buckets are the upper sixteen bits of
a 32-bit float: 128 buckets for each factor of two, so that a quantile is within 0.4 % of a value that was recorded,
from nanoseconds to years. Records are put aside as they come and taken in by the hundred, by functions that Python runs
in C: a lock and a loop for each of them would cost more than what is measured.
"""

import math
import struct
import sys
import threading
from array import array
from collections import Counter
from dataclasses import dataclass

MAX_PENDING = 512
"""So many records are put aside before they are taken in."""

NUM_COUNTED_ALL = 4096
"""Up to so many records all are in the histogram; of those after them every fourth, each time another one."""

_STRIDE = 4
_UPPER_HALF = slice(1, None, 2) if sys.byteorder == "little" else slice(0, None, 2)


@dataclass(frozen=True)
class DurationSummary:
    """What is known of a number of durations, in seconds."""

    count: int
    total_s: float
    nested_s: float
    """The part of the total that was spent in other operations, timed inside."""
    min_s: float
    max_s: float
    p50_s: float
    p95_s: float
    p99_s: float

    @property
    def mean_s(self) -> float:
        """The average; 0 without any."""
        return self.total_s / self.count if self.count else 0.0

    @property
    def exclusive_s(self) -> float:
        """The total without what was spent in other operations."""
        return max(self.total_s - self.nested_s, 0.0)


class DurationSketch:
    """Takes durations in and says how they are distributed. Any thread may do either.

    What times in a hot path may append to `pending` and `nested` itself, and then calls `fold` when there are
    `MAX_PENDING` records: appending to a list cannot be interrupted.
    """

    __slots__ = (
        "_buckets",
        "_count",
        "_lock",
        "_max_s",
        "_min_s",
        "_nested_s",
        "_num_folds",
        "_total_s",
        "nested",
        "pending",
    )

    def __init__(self) -> None:
        self.pending: list[float] = []
        """Durations that are not taken in yet."""
        self.nested: list[float] = []
        """Seconds of other operations inside of those, likewise."""
        # Reentrant: a signal handler or a finalizer may time something while its thread is in here.
        self._lock = threading.RLock()
        self._forget()

    def add(self, seconds: float) -> None:
        """Record one duration."""
        self.pending.append(seconds)
        if len(self.pending) >= MAX_PENDING:
            self.fold()

    def fold(self) -> None:
        """Take in what was put aside."""
        with self._lock:
            taken, nested = _take(self.pending), _take(self.nested)
            if nested:
                self._nested_s += sum(nested)
            if taken:
                self._count += len(taken)
                self._total_s += sum(taken)
                self._min_s = min(self._min_s, min(taken))
                self._max_s = max(self._max_s, max(taken))
                self._num_folds += 1
                if self._count > NUM_COUNTED_ALL:
                    # From another one each time, or what happens every fourth time would always or never be in it.
                    taken = taken[self._num_folds % _STRIDE :: _STRIDE]
                self._buckets.update(array("H", array("f", taken).tobytes())[_UPPER_HALF])

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            _take(self.pending)
            _take(self.nested)
            self._forget()

    def summarise(self) -> DurationSummary:
        """What was recorded so far; zeros before anything was."""
        with self._lock:
            self.fold()
            p50, p95, p99 = self._quantiles(0.5, 0.95, 0.99)
            low = self._min_s if self._count else 0.0
            return DurationSummary(
                self._count, self._total_s, self._nested_s, low, self._max_s, p50_s=p50, p95_s=p95, p99_s=p99
            )

    def _forget(self) -> None:
        self._count = self._num_folds = 0
        self._total_s = self._nested_s = self._max_s = 0.0
        self._min_s = math.inf
        self._buckets: Counter[int] = Counter()

    def _quantiles(self, *shares: float) -> list[float]:
        """The values below which so much of the records lies. The shares have to rise."""
        ranks = [max(math.ceil(share * self._buckets.total()), 1) for share in shares]
        found: list[float] = []
        num_below = 0
        for bucket in sorted(self._buckets):
            num_below += self._buckets[bucket]
            while len(found) < len(ranks) and num_below >= ranks[len(found)]:
                found.append(min(max(_middle(bucket), self._min_s), self._max_s))
        return found or [0.0] * len(shares)


def _take(records: list[float]) -> list[float]:
    """Empty a list to which other threads may be appending; what they append meanwhile stays in it."""
    taken = records[:]
    del records[: len(taken)]
    return taken


def _middle(bucket: int) -> float:
    low, high = struct.unpack("<ff", struct.pack("<II", bucket << 16, (bucket + 1) << 16))
    return (low + high) / 2
