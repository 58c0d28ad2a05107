"""Where the lines of a block lie, and which of them are metrics: found for all at once, without decoding any."""

from typing import NamedTuple

import numpy as np

_METRICS_ROW = np.frombuffer(b'{"kind":"metrics",', np.uint8)
"""What a row of metrics begins with."""
_NEWLINE, _CLOSING_BRACE = ord("\n"), ord("}")


class Lines(NamedTuple):
    """The lines of a block that are not empty."""

    starts: np.ndarray
    ends: np.ndarray
    """Where the line's end lies, which is not part of it."""
    is_metrics: np.ndarray
    """Whether it begins like a row of metrics."""

    def num_torn_metrics(self, block: bytes | memoryview) -> int:
        """How many rows of metrics do not end like a row."""
        last = np.frombuffer(block, np.uint8)[self.ends[self.is_metrics] - 1]
        return int(np.count_nonzero(last != _CLOSING_BRACE))


def split_lines(block: bytes | memoryview) -> Lines:
    """Find the lines of a block.

    Args:
        block: Whole lines.
    """
    buffer = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(buffer == _NEWLINE)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    has_text = ends > starts
    starts, ends = starts[has_text], ends[has_text]
    is_metrics = ends - starts > len(_METRICS_ROW)
    beginnings = buffer[starts[is_metrics, None] + np.arange(len(_METRICS_ROW))]
    is_metrics[is_metrics] = (beginnings == _METRICS_ROW).all(axis=1)
    return Lines(starts, ends, is_metrics)
