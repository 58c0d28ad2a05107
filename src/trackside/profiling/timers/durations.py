"""How long something took, any number of times, in bounded memory.

Count, sum, smallest and largest are exact. Quantiles come from a histogram whose buckets are the upper sixteen bits of
a 32-bit float: 128 buckets for each factor of two, so that a quantile is within 0.4 % of a value that was recorded,
from nanoseconds to years. Records are put aside as they come and processed by the thousand, as one array: a lock and a
loop for each of them would cost more than what is measured.
"""

import math
import struct
import threading
from dataclasses import dataclass

import numpy as np

MAX_PENDING = 2048
"""How many records are put aside before they are processed."""


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
    """Collects durations and says how they are distributed. Any thread may do either.

    A hot path may append to `pending` and `nested` itself, and call `fold` when there are `MAX_PENDING` records:
    appending to a list cannot be interrupted.
    """

    __slots__ = (
        "_count",
        "_counts",
        "_first_bucket",
        "_lock",
        "_max_s",
        "_min_s",
        "_nested_s",
        "_total_s",
        "nested",
        "pending",
    )

    def __init__(self) -> None:
        self.pending: list[float] = []
        """Durations that are not processed yet."""
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

    def add_many(self, seconds: float, count: int) -> None:
        """Record a number of equal durations."""
        self.pending += [seconds] * count
        if len(self.pending) >= MAX_PENDING:
            self.fold()

    def fold(self) -> None:
        """Process what was put aside."""
        with self._lock:
            taken, nested_s = _take(self.pending), sum(_take(self.nested))
            self._nested_s += nested_s
            if taken:
                # Through bytes: numpy takes three times as long to look at each number of a list.
                self._take_in(np.frombuffer(struct.pack(f"{len(taken)}d", *taken)))

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

    def _take_in(self, values: np.ndarray) -> None:
        total_s, low, high = float(values.sum()), float(values.min()), float(values.max())
        buckets = values.astype(np.float32).view(np.uint32) >> 16
        first = int(buckets.min())
        counts = np.bincount(buckets - first)
        self._count += len(values)
        self._total_s += total_s
        self._min_s, self._max_s = min(self._min_s, low), max(self._max_s, high)
        self._add_counts(first, counts)

    def _add_counts(self, first: int, counts: np.ndarray) -> None:
        """Add to the histogram, which reaches from the first bucket that has records to the last."""
        if not len(self._counts):
            self._first_bucket, self._counts = first, counts
            return
        begin = min(self._first_bucket, first)
        end = max(self._first_bucket + len(self._counts), first + len(counts))
        merged = np.zeros(end - begin, np.int64)
        for start, part in ((self._first_bucket, self._counts), (first, counts)):
            merged[start - begin : start - begin + len(part)] += part
        self._first_bucket, self._counts = begin, merged

    def _forget(self) -> None:
        self._count = self._first_bucket = 0
        self._total_s = self._nested_s = self._max_s = 0.0
        self._min_s = math.inf
        self._counts = np.zeros(0, np.int64)

    def _quantiles(self, *shares: float) -> list[float]:
        """The values below which these shares of the records are."""
        if not len(self._counts):
            return [0.0] * len(shares)
        num_up_to = np.cumsum(self._counts)
        ranks = [max(math.ceil(share * int(num_up_to[-1])), 1) for share in shares]
        found = self._first_bucket + np.searchsorted(num_up_to, ranks)
        return [min(max(_middle(int(bucket)), self._min_s), self._max_s) for bucket in found]


def _take(records: list[float]) -> list[float]:
    """Empty a list to which other threads may be appending; what they append in the meantime stays."""
    taken = records[:]
    del records[: len(taken)]
    return taken


def _middle(bucket: int) -> float:
    low, high = struct.unpack("<ff", struct.pack("<II", bucket << 16, (bucket + 1) << 16))
    return (low + high) / 2
