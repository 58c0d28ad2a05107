"""A capture as a run wrote it down: the row `capture` of an event file, and what its fields mean.

Everything that reads captures asks this class which of them have tables, so that all agree on it.
"""

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from trackside.errors import TraceError
from trackside.trace.trace_report import TraceReport


class CaptureRow(dict[str, Any]):
    """A row `capture`: the row itself, a dict, whose fields are also attributes with types and defaults.

    `row["report"]` holds plain values; `row.report` is the report that they were written from.
    """

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "CaptureRow":
        """The row, read as a capture; one that already is comes back as it is."""
        return row if isinstance(row, cls) else cls(row)

    @property
    def session(self) -> str:
        """The name under which TensorBoard and xprof show it."""
        return str(self.get("session") or "")

    @property
    def path(self) -> str:
        """The folder of its files."""
        return str(self.get("path") or "")

    @property
    def reason(self) -> str:
        """What started it."""
        return str(self.get("reason") or "")

    @property
    def first_step(self) -> int:
        """The first step that it holds."""
        return _whole(self.get("first_step"))

    @property
    def last_step(self) -> int:
        """The last step that it holds."""
        return _whole(self.get("last_step"))

    @property
    def utilisation(self) -> float | None:
        """The model's FLOP/s as a share of the devices' peak; None if either is unknown."""
        value = self.get("utilisation")
        return float(value) if isinstance(value, int | float) else None

    @property
    def utilisation_range(self) -> tuple[float, float] | None:
        """The least and the most that this may be; None for a peak without a spread."""
        match self.get("utilisation_range"):
            case [int() | float() as low, int() | float() as high]:
                return float(low), float(high)
        return None

    @property
    def notes(self) -> list[str]:
        """What to know about its tables."""
        warnings = self.get("warnings")
        own = [str(warning) for warning in warnings] if isinstance(warnings, list) else []
        return own if self.report is None else [*self.report.missing, *self.report.warnings, *own]

    @property
    def report(self) -> TraceReport | None:
        """Its tables; None if there are none, or they cannot be read: `error` says why."""
        return self._read[0]

    @property
    def error(self) -> str:
        """What went wrong; empty if nothing did. The tables may be there all the same, if only an export failed."""
        return str(self.get("error") or self._read[1] or "")

    @property
    def is_analysed(self) -> bool:
        """Whether there are tables with any device time in them."""
        return self.report is not None and self.report.coverage.busy_s > 0

    @cached_property
    def _read(self) -> tuple[TraceReport | None, str]:
        plain = self.get("report")
        if plain is None:
            return None, ""
        try:
            return TraceReport.from_dict(plain), ""
        except TraceError as error:
            return None, str(error)


def analysed_captures(rows: Iterable[Mapping[str, Any]]) -> list[tuple[CaptureRow, TraceReport]]:
    """The captures that have tables, each with its report, in the order of the rows."""
    captures = (CaptureRow.of(row) for row in rows)
    return [(capture, capture.report) for capture in captures if capture.is_analysed and capture.report is not None]


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0
