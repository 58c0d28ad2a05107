"""A run at a glance, for lists of many: from few rows of its event file, found without decoding the others.

Rows begin with their kind, so that the last status, the validations and the last steps are found by searching bytes. Of
a file that is larger than `MAX_SCANNED_BYTES` only the beginning and the end are looked at.
"""

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from trackside.report.best_metric import BestMetric, Monitored, best_of, choose_metric
from trackside.runs.run_folders import process_index_of
from trackside.runs.run_status import is_held, status_of

MAX_SCANNED_BYTES = 64 << 20
_END_BYTES = 8 << 20
_NUM_TIMED_ROWS = 50
_MAX_ROWS = 2000
"""Rows of a metric that are decoded at most, the last ones."""


@dataclass(frozen=True)
class Glance:
    """What a list shows of a run."""

    path: Path
    status: str
    step: int
    epoch: int
    steps_per_second: float | None
    """Of its last steps; None where none was timed."""
    best: BestMetric | None
    is_best_of_all: bool
    """Whether all rows of that metric were looked at."""
    started_at: float
    ended_at: float

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {**asdict(self), "path": str(self.path)}


def glance_at(path: Path) -> Glance | None:
    """Look at a run.

    Args:
        path: The run's directory.

    Returns:
        What there is to see; None where no event file can be read.
    """
    file = min((entry for entry in path.iterdir() if process_index_of(entry) is not None), default=None)
    if file is None:
        return None
    try:
        rows, changed_at = _Rows.of(file), file.stat().st_mtime
    except OSError:
        return None
    head, tail = rows.first(), next(rows.backward(), {})
    # The last one, as the reader of the whole file has it: a leg may go on from a step before the highest.
    reports = rows.backward("metrics", "leg", "leg_end", "status")
    last = next((row for row in reports if row.get("step") is not None), {})
    best, is_best_of_all = _best(rows)
    return Glance(
        path,
        status_of(rows.of_kinds("format", "leg", "status"), is_held(path)),
        int(last.get("step") or 0),
        int(last.get("epoch") or 0),
        _speed(rows),
        best,
        is_best_of_all,
        float(head.get("t") or changed_at),
        float(tail.get("t") or changed_at),
    )


class _Rows:
    """The rows of a file, found from its beginning or its end."""

    def __init__(self, data: bytes, is_whole: bool):
        self._data = data
        self.is_whole = is_whole

    @classmethod
    def of(cls, path: Path) -> "_Rows":
        size = path.stat().st_size
        with path.open("rb") as file:
            if size > MAX_SCANNED_BYTES:
                head = file.read(_END_BYTES)
                file.seek(size - _END_BYTES)
                # Lines cut in two are no rows, and are passed over as any damaged line.
                return cls(b"\n" + head + b"\n" + file.read(), is_whole=False)
            return cls(b"\n" + file.read(), is_whole=True)

    def first(self) -> dict[str, Any]:
        """The first row."""
        return self._decode(self._data.find(b"\n{"))

    def backward(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """The rows of these kinds, or of all, the last one first."""
        begins = list(map(_begin, kinds)) or [b'\n{"kind":']
        places = {begin: self._data.rfind(begin) for begin in begins}
        while (at := max(places.values())) >= 0:
            if row := self._decode(at):
                yield row
            begin = next(begin for begin, place in places.items() if place == at)
            places[begin] = self._data.rfind(begin, 0, at)

    def of_kinds(self, *kinds: str) -> list[dict[str, Any]]:
        """The rows of these kinds, in order."""
        places = sorted(place for kind in kinds for place in self._places(_begin(kind)))
        return [row for place in places if (row := self._decode(place))]

    def _places(self, sought: bytes) -> Iterator[int]:
        at = self._data.find(sought)
        while at >= 0:
            yield at
            at = self._data.find(sought, at + 1)

    def metrics_backward(self, mode: str) -> Iterator[dict[str, Any]]:
        """The metrics of a mode, the last row first."""
        sought, begin = b'"mode":"%b"' % mode.encode(), _begin("metrics")
        at = self._data.rfind(sought)
        while at >= 0:
            start = self._data.rfind(b"\n", 0, at)
            if self._data[start : start + len(begin)] == begin and (row := self._decode(start)):
                yield row
            at = self._data.rfind(sought, 0, max(start, 0))

    def _decode(self, at: int) -> dict[str, Any]:
        """The row that begins after a line end; empty if it is none, as a torn one."""
        if at < 0:
            return {}
        end = self._data.find(b"\n", at + 1)
        try:
            row = msgspec.json.decode(self._data[at + 1 : end if end >= 0 else None])
        except ValueError:
            return {}
        return row if isinstance(row, dict) else {}


def _begin(kind: str) -> bytes:
    return b'\n{"kind":"%b"' % kind.encode()


def _speed(rows: _Rows) -> float | None:
    times = []
    for row in rows.metrics_backward("train"):
        step_time_s = (row.get("values") or {}).get("step_time")
        if isinstance(step_time_s, float) and step_time_s > 0:
            times.append(step_time_s)
        if len(times) >= _NUM_TIMED_ROWS:
            break
    return 1 / statistics.median(times) if times else None


def _best(rows: _Rows) -> tuple[BestMetric | None, bool]:
    """The best value of the metric by which the run is judged, and whether it is the best of all."""
    config: dict[str, Any] = {}
    for row in rows.of_kinds("config"):
        config.update(row.get("config") or {})
    names = {mode: list(next(rows.metrics_backward(mode), {}).get("values") or {}) for mode in ("val", "train")}
    monitored = choose_metric(config, {mode: own for mode, own in names.items() if own})
    if monitored is None:
        return None, True
    steps, values = _values(rows, monitored)
    return best_of(monitored, steps[::-1], values[::-1]), rows.is_whole and len(steps) < _MAX_ROWS


def _values(rows: _Rows, monitored: Monitored) -> tuple[np.ndarray, np.ndarray]:
    steps, values = [], []
    for row in rows.metrics_backward(monitored.mode):
        value = (row.get("values") or {}).get(monitored.name)
        if isinstance(value, int | float):
            steps.append(row.get("step") or 0)
            values.append(float(value))
        if len(values) >= _MAX_ROWS:
            break
    return np.array(steps, np.int64), np.array(values)
