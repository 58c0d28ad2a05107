"""Step times: percentiles over clean steps, and how many steps were left out."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trackside.runs import StepTimes


@dataclass(frozen=True)
class StepTimeSummary:
    """The time per step over the clean steps. A log row has the mean of its interval, which counts for all of them."""

    p50_s: float
    p95_s: float
    p99_s: float
    mean_s: float
    num_steps: int
    """How many steps these figures cover."""
    num_left_out: int
    """How many steps were left out."""
    left_out: dict[str, int]
    """The same by reason: `compiling`, `warm_up` (the first of a leg), `disturbed` (validation, checkpoint, capture),
    `not_timed` (no row has a time)."""
    steps_per_row: int
    """How many steps a log row covers, in the median: spikes within a row are not visible."""


def summarise_step_times(times: "StepTimes", num_steps: int | None = None) -> StepTimeSummary | None:
    """The percentiles of a run's step times; None where no clean step was timed.

    Args:
        times: The times as `Run.step_times` has them.
        num_steps: How many steps the run has made, to count those without a time as left out.
    """
    clean = times.clean & np.isfinite(times.seconds)
    seconds, weights = times.seconds[clean], times.num_steps[clean]
    if not weights.sum():
        return None
    p50, p95, p99 = times.percentiles_s(0.5, 0.95, 0.99)
    left_out = _count_left_out(times, num_steps)
    return StepTimeSummary(
        p50,
        p95,
        p99,
        float(np.average(seconds, weights=weights)),
        int(weights.sum()),
        sum(left_out.values()),
        left_out,
        int(np.median(weights)),
    )


def _count_left_out(times: "StepTimes", num_steps: int | None) -> dict[str, int]:
    """Left-out steps by reason; a step with several reasons counts for the first."""
    counted = np.zeros(len(times.seconds), bool)
    found: dict[str, int] = {}
    for name, mask in (("compiling", times.compiling), ("warm_up", times.warm_up), ("disturbed", times.disturbed)):
        number = int(times.num_steps[mask & ~counted].sum())
        counted |= mask
        if number:
            found[name] = number
    not_timed = 0 if num_steps is None else num_steps - int(times.num_steps.sum())
    return {**found, "not_timed": not_timed} if not_timed > 0 else found
