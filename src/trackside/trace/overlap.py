"""Wall time shared among operations that overlap, so that all shares together are the time in which any ran.

While n operations of a device run, each gets a nth of the time. With F(t) the integral of 1/n, an operation's share is
F(end) - F(start): one sort, no loop over time. Operations that count differently get a share of their weight instead.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Segments:
    """Stretches of time, each of one operation."""

    start_ps: np.ndarray
    end_ps: np.ndarray
    event: np.ndarray
    """Which event, as an index into the events that were split."""


@dataclass(frozen=True)
class Timeline:
    """When a device was busy."""

    time_ps: np.ndarray
    """The moments at which the number of running operations changes."""
    busy_ps: np.ndarray
    """Busy time up to each moment."""

    def busy_until(self, time_ps: np.ndarray) -> np.ndarray:
        """Busy time up to any moments."""
        if not len(self.time_ps):
            return np.zeros(len(time_ps))
        return np.interp(time_ps, self.time_ps, self.busy_ps)

    def gaps(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the stretches begin and end in which nothing ran, between the first and the last operation."""
        idle = np.flatnonzero((np.diff(self.busy_ps) == 0) & (np.diff(self.time_ps) > 0))
        return self.time_ps[idle], self.time_ps[idle + 1]


def self_segments(line: np.ndarray, start_ps: np.ndarray, end_ps: np.ndarray) -> Segments:
    """The time of each event without that of the events that lie within it on the same line.

    Args:
        line: The line of each event.
        start_ps: When it began.
        end_ps: When it ended.
    """
    # Within a line in time; what begins together with the outermost first.
    order = np.lexsort((-end_ps, start_ps, line))
    line, start, end = line[order], start_ps[order], end_ps[order]
    # Lines are laid behind each other, so that one running maximum serves them all.
    reach = int(end.max() - start.min()) + 1 if len(order) else 0
    offset = line.astype(np.int64) * reach
    latest = np.maximum.accumulate(end + offset)
    begins_inside = np.zeros(len(order), bool)
    begins_inside[1:] = (start + offset)[1:] < latest[:-1]
    if not begins_inside.any():
        return Segments(start, end, order)
    # Only where events overlap is there something to take apart.
    group = np.cumsum(~begins_inside) - 1
    sizes = np.bincount(group)
    alone = sizes[group] == 1
    starts, ends, events = [start[alone]], [end[alone]], [order[alone]]
    nested = np.flatnonzero(~alone)
    parts = _split_nested(group[nested].tolist(), start[nested].tolist(), end[nested].tolist())
    if parts:
        part_start, part_end, index = (np.array(column, np.int64) for column in zip(*parts, strict=True))
        starts.append(part_start)
        ends.append(part_end)
        events.append(order[nested[index]])
    return Segments(np.concatenate(starts), np.concatenate(ends), np.concatenate(events))


def segments_to_completion(line: np.ndarray, start_ps: np.ndarray, end_ps: np.ndarray, done_ps: np.ndarray) -> Segments:
    """`self_segments`, and what is left of an operation elsewhere after it has returned, which is no part of any line.

    Args:
        line: The line of each event.
        start_ps: When it began.
        end_ps: When it returned.
        done_ps: When it was complete.
    """
    own = self_segments(line, start_ps, end_ps)
    late = np.flatnonzero(done_ps > end_ps)
    return Segments(
        np.concatenate([own.start_ps, end_ps[late]]),
        np.concatenate([own.end_ps, done_ps[late]]),
        np.concatenate([own.event, late]),
    )


def _split_nested(group: list[int], start: list[int], end: list[int]) -> list[tuple[int, int, int]]:
    """Start, end and event of each stretch in which an event was the innermost one."""
    parts: list[tuple[int, int, int]] = []
    stack: list[int] = []
    now = 0
    for index, begin in enumerate(start):
        is_new_group = index and group[index] != group[index - 1]
        while stack and (is_new_group or end[stack[-1]] <= begin):
            now = _close(stack.pop(), now, end, parts)
        if stack and begin > now:
            parts.append((now, begin, stack[-1]))
        now = begin
        stack.append(index)
    while stack:
        now = _close(stack.pop(), now, end, parts)
    return parts


def _close(index: int, now: int, end: list[int], parts: list[tuple[int, int, int]]) -> int:
    """Add what is left of an event, and return when it ended."""
    if end[index] > now:
        parts.append((now, end[index], index))
    return max(now, end[index])


def share_wall(segments: Segments, weight: np.ndarray | None = None) -> tuple[np.ndarray, Timeline]:
    """Each segment's share of the wall time, in picoseconds, and when anything ran.

    Args:
        segments: The segments.
        weight: What each counts for while others run, above 0; all count the same if left out.
    """
    num = len(segments.start_ps)
    times = np.concatenate([segments.start_ps, segments.end_ps])
    order = np.argsort(times, kind="stable")
    time = times[order]
    running = np.cumsum(np.where(order < num, np.int8(1), np.int8(-1)), dtype=np.int32)[:-1]
    first = np.zeros(min(1, len(time)))
    duration = np.where(running > 0, np.diff(time), 0).astype(float)
    busy_ps = np.concatenate([first, np.cumsum(duration)])
    if weight is None:
        duration /= np.maximum(running, 1)
    else:
        running_weight = np.cumsum(np.concatenate([weight, -weight])[order])[:-1]
        np.divide(duration, running_weight, out=duration, where=running > 0)
    integral = np.empty(2 * num)
    integral[order] = np.concatenate([first, np.cumsum(duration)])
    shares = integral[num:] - integral[:num]
    return shares if weight is None else shares * weight, Timeline(time, busy_ps)
