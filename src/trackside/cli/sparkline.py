"""A series as a line of bars, for the terminal."""

import numpy as np

_BARS = "▁▂▃▄▅▆▇█"
_NOT_FINITE = "!"
_LOG_RATIO = 20.0


def sparkline(values: np.ndarray, width: int) -> str:
    """A series as a line of at most `width` columns.

    Each column is the mean of its part of the series; `!` marks one with a value that is not finite. A positive series
    that spans more than a decade is drawn by its logarithm, so that its end can still be seen.

    Args:
        values: The series.
        width: The most columns.
    """
    if not len(values) or width < 1:
        return ""
    parts = np.array_split(np.asarray(values, float), min(width, len(values)))
    means = np.array([part.mean() for part in parts])
    finite = means[np.isfinite(means)]
    if not len(finite):
        return _NOT_FINITE * len(means)
    low, high = finite.min(), finite.max()
    if low > 0 and high / low > _LOG_RATIO:
        low, high, means = np.log(low), np.log(high), np.log(np.where(means > 0, means, np.nan))
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] if np.isfinite(mean) else _NOT_FINITE for mean in means)
