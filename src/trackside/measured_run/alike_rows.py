"""The rows that a loop logs at every step are alike: many of them are read and written at once, by column."""

import struct
from collections.abc import Sequence
from typing import Any

from numpy import asarray

from trackside.metric_columns import MetricColumns
from trackside.profiling.array_state import is_ready
from trackside.profiling.call_record import CallRecord

ONLY_REPORT, PER_STEP = 1, 2
WaitingRow = tuple[dict[str, Any], int, int, str, CallRecord | None, int]
"""Values of one step that are not written yet, the step, its epoch, what they are logged under, the call before, and
`ONLY_REPORT` if this is a row of training whose only value is what shows that the call has completed, a usual one,
`PER_STEP` if some are values for each of its steps, and else 0."""

_UNPACK = struct.Struct("f").unpack


class AlikeRows:
    """Reads rows of training that have the same metrics.

    Attributes:
        usual: What JAX calls the abstract values of numbers in the host's memory, which can be read from there in half
            the time; None if there are none.
    """

    def __init__(self) -> None:
        self.usual: Any = None

    def read(self, rows: Sequence[WaitingRow]) -> tuple[MetricColumns, list[float]]:
        """Read rows up to the first that is not like them, or has values that are not there or cannot be read.

        Args:
            rows: The rows, in the order of their steps.

        Returns:
            The rows that were read, and when their steps were over.
        """
        names = tuple(rows[0][0])
        flat = self._read_reports(rows, names) or self._read_any(rows, names)
        if not flat:
            return MetricColumns(names, [], [], []), []
        _, steps, epochs, _, calls, _ = zip(*rows[: len(flat) // len(names)], strict=True)
        return MetricColumns(names, flat, list(steps), list(epochs)), [call.completed_s for call in calls]

    def _read_reports(self, rows: Sequence[WaitingRow], names: tuple[str, ...]) -> list[float]:
        """Read rows that have nothing but what shows that their call has completed, as most loops log."""
        if self.usual is None:
            return []
        arrays, last = [], -1
        name = names[0] if len(names) == 1 else None
        for values, step, _, _, call, form in rows:
            if form != ONLY_REPORT or call is None or step <= last or name not in values:
                break
            if call.is_disturbed or call.completed_s != call.completed_s:  # not a number: nobody saw it yet
                break
            last = step
            arrays.append(values[name])
        try:
            return [_UNPACK(one)[0] for one in arrays]
        except Exception:  # it is not in the host's memory, or one cannot be read
            self.usual = None
            return []

    def _read_any(self, rows: Sequence[WaitingRow], names: tuple[str, ...]) -> list[float]:
        """Read rows one by one."""
        flat, last, num_read = [], -1, 0
        try:
            for values, step, _, mode, call, form in rows:
                if mode != "train" or call is None or form == PER_STEP or step <= last or tuple(values) != names:
                    break
                if call.completed_s != call.completed_s:
                    break
                for value in values.values():
                    if type(value) is float:
                        flat.append(value)
                    elif not is_ready(value):
                        raise LookupError
                    elif value.aval is self.usual:
                        flat.append(_UNPACK(value)[0])
                    else:
                        flat.append(float(asarray(value).item()))
                num_read, last = num_read + 1, step
        except LookupError:  # not there yet
            pass
        except Exception:  # donated since, or its computation has failed, or it is not in the host's memory
            self.usual = None
        return flat[: num_read * len(names)]
