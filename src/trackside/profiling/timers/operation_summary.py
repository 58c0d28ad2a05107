"""What the timers found, as plain values: one dict per operation."""

from typing import NotRequired, TypedDict

from trackside.profiling.timers.durations import DurationSummary
from trackside.profiling.timers.sampled_shares import SampledShare


class OperationSummary(TypedDict):
    """What one operation took, in seconds. Sampled operations are estimates, with an interval."""

    avg_time: float
    total_time: float
    """Including other operations inside."""
    count: int
    wall_share: float
    """The total, as a share of the time since the profiler was made or reset."""
    min_time: NotRequired[float]
    max_time: NotRequired[float]
    p50_time: NotRequired[float]
    """The median; like the other quantiles within 0.4 %."""
    p95_time: NotRequired[float]
    p99_time: NotRequired[float]
    exclusive_time: NotRequired[float]
    """The total without other operations that were timed inside; for host time only."""
    step_share: NotRequired[float]
    """For a sampled operation: its share of the step that contains it."""
    step_share_low: NotRequired[float]
    step_share_high: NotRequired[float]
    """The 95 % confidence interval of that share."""
    num_samples: NotRequired[int]
    """For a sampled operation: the number of captures behind it."""


def summarise_operation(found: DurationSummary, wall_s: float, is_host_time: bool) -> OperationSummary:
    """What a measured operation took.

    Args:
        found: Its records.
        wall_s: How long the profiler has been measuring.
        is_host_time: Whether it is time of the host, so that other operations can be nested in it.
    """
    summary = OperationSummary(
        avg_time=found.mean_s,
        total_time=found.total_s,
        count=found.count,
        wall_share=found.total_s / wall_s if wall_s > 0 else 0.0,
        min_time=found.min_s,
        max_time=found.max_s,
        p50_time=found.p50_s,
        p95_time=found.p95_s,
        p99_time=found.p99_s,
    )
    if is_host_time:
        summary["exclusive_time"] = found.exclusive_s
    return summary


def summarise_share(share: SampledShare, wall_s: float) -> OperationSummary:
    """What an operation inside of a jitted step took: its share of the step times the length of the steps.

    Args:
        share: Its samples.
        wall_s: How long the profiler has been measuring.
    """
    estimate, steps = share.estimate(), share.steps.summarise()
    seconds = estimate.share * steps.mean_s
    return OperationSummary(
        avg_time=seconds,
        total_time=seconds * steps.count,
        count=steps.count,
        wall_share=seconds * steps.count / wall_s if wall_s > 0 else 0.0,
        step_share=estimate.share,
        step_share_low=estimate.low,
        step_share_high=estimate.high,
        num_samples=estimate.num_samples,
    )
