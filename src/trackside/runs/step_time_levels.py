"""Step times as levels for a chart: each is the mean of an interval."""

import numpy as np

from trackside.runs.logged_step_times import StepTimes

_MAX_BRIDGED = 5
"""A level is extended over a gap of up to this many log intervals."""


def clean_levels(times: StepTimes) -> tuple[np.ndarray, np.ndarray]:
    """The clean step times, with a gap (NaN) where there was none for long: a line across would be invented.

    A level begins where its own interval begins, or at the end of the level before it if that is near.

    Args:
        times: The step times.

    Returns:
        The ends of the levels and their values in seconds. The first point marks where the first level begins.
    """
    ends, values, num_steps = (column[times.clean] for column in (times.step, times.seconds, times.num_steps))
    if not len(ends):
        return ends, values
    breaks = np.flatnonzero(np.diff(ends) > _MAX_BRIDGED * np.median(times.num_steps)) + 1
    begins = np.insert(breaks, 0, 0)
    steps = np.insert(ends, np.append(begins, breaks), np.append((ends - num_steps)[begins], ends[breaks - 1]))
    levels = np.insert(values, np.append(begins, breaks), np.append(values[begins], np.full(len(breaks), np.nan)))
    order = np.argsort(steps, kind="stable")
    return steps[order], levels[order]
