"""A run at a glance, for lists of many runs: from a few rows of its event file, without decoding the others.

Rows begin with their kind, so that the few that matter are found by searching bytes; so are the values of a metric, of
which there may be thousands. Of a file larger than `MAX_SCANNED_BYTES`, only the beginning and the end are read.
"""

import itertools
import re
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from trackside.report.best_metric import TRAIN_EPOCH_MODE, BestMetric, best_of, choose_metric
from trackside.report.status_words import RunStatus, judge_status
from trackside.runs.run_folders import process_index_of
from trackside.runs.run_status import UNKNOWN, is_held, status_of

MAX_SCANNED_BYTES = 64 << 20
_END_BYTES = 8 << 20
_NUM_TIMED_ROWS = 50
_NUM_NAMED_ROWS = 5
"""Last rows of a mode whose metrics are looked at: the very last may be a row of a callback, without a loss."""
_NUMBER = rb"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_HISTORY = re.compile(rb'\n\{"kind":"(?:format|leg|status|stop)"')
_REPORTS = ("metrics", "leg", "leg_end", "status")


@dataclass(frozen=True)
class Glance:
    """What a list shows of a run."""

    path: Path
    status: str
    stop_reason: str | None
    """Why a callback ended the training before its goal."""
    step: int
    epoch: int
    steps_per_second: float | None
    """Over its last steps; None if none was timed."""
    best: BestMetric | None
    is_best_of_all: bool
    """Whether all rows of that metric were read."""
    started_at: float
    ended_at: float

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {**asdict(self), "path": str(self.path)}


def glance_at(path: Path) -> Glance:
    """Look at a run.

    Args:
        path: The run's directory.

    Returns:
        The glance. Its status is `unknown` if the event file cannot be read, or has rows that make no sense.
    """
    try:
        return _glance_at(path)
    except Exception:  # whatever is in one file, a list shows the other runs
        return Glance(path, UNKNOWN, None, 0, 0, None, None, True, *([_changed_at(path)] * 2))


def _glance_at(path: Path) -> Glance:
    file = min(entry for entry in path.iterdir() if process_index_of(entry) is not None)
    rows = _Rows.of(file)
    first, last = rows.first(), next(rows.backward(), {})
    # The last one, as the full reader has it: a leg may resume from a step before the highest.
    reported = next((row for row in rows.backward(*_REPORTS) if row.get("step") is not None), {})
    step = int(reported.get("step") or 0)
    has_steps = any(next(rows.metrics_backward(mode), None) for mode in ("train", "default"))
    status = _status(rows.history(), is_held(path), step, has_steps)
    changed_at = _changed_at(path)
    return Glance(
        path,
        status.word,
        status.stop_reason,
        step,
        int(reported.get("epoch") or 0),
        _speed(rows),
        _best(rows),
        rows.is_whole,
        float(first.get("t") or changed_at),
        float(last.get("t") or changed_at),
    )


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class _Rows:
    """The rows of an event file, found by their first bytes and decoded when they are asked for.

    Args:
        data: What was read of the file.
        is_whole: Whether that is all of it.
    """

    def __init__(self, data: bytes, is_whole: bool):
        self._data = b"\n" + data
        self.is_whole = is_whole

    @classmethod
    def of(cls, path: Path) -> "_Rows":
        """Those of a file.

        Raises:
            OSError: It cannot be read, or is not a regular file: opening a pipe would wait for its writer.
        """
        if not path.is_file():
            raise OSError(f"{path} is not a regular file")
        size = path.stat().st_size
        with path.open("rb") as file:
            if size <= MAX_SCANNED_BYTES:
                return cls(file.read(), is_whole=True)
            head = file.read(_END_BYTES)
            file.seek(size - _END_BYTES)
            # A line cut in two is skipped like any damaged line.
            return cls(head + b"\n" + file.read(), is_whole=False)

    def first(self) -> dict[str, Any]:
        """The first row."""
        return self.at(1)

    def history(self) -> list[dict[str, Any]]:
        """The rows `format`, `leg`, `status` and `stop`, in order."""
        return [row for found in _HISTORY.finditer(self._data) if (row := self.at(found.start() + 1))]

    def backward(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """The rows of these kinds, or of all, the last one first."""
        begins = [b'\n{"kind":%b' % msgspec.json.encode(kind) for kind in kinds] or [b'\n{"kind":']
        places = {begin: self._data.rfind(begin) for begin in begins}
        while (place := max(places.values())) >= 0:
            if row := self.at(place + 1):
                yield row
            begin = next(begin for begin, other in places.items() if other == place)
            places[begin] = self._data.rfind(begin, 0, place)

    def metrics_backward(self, mode: str) -> Iterator[dict[str, Any]]:
        """The metrics of a mode, the last row first."""
        sought = b'"mode":%b,"values":' % msgspec.json.encode(mode)
        place = self._data.rfind(sought)
        while place >= 0:
            if row := self.at(place):
                yield row
            place = self._data.rfind(sought, 0, place)

    def values(self, mode: str, name: str) -> list[tuple[int, float]]:
        """All finite values of a metric, in order, each with a place in its row."""
        own_mode, own_name = (re.escape(msgspec.json.encode(text)) for text in (mode, name))
        pattern = b'"mode":%b,"values":\\{[^}\n]*?%b:%b' % (own_mode, own_name, _NUMBER)
        return [(found.start(), float(found[1])) for found in re.finditer(pattern, self._data)]

    def at(self, place: int) -> dict[str, Any]:
        """The row around a place in the file; empty if the line is damaged."""
        end = self._data.find(b"\n", place)
        line = self._data[self._data.rfind(b"\n", 0, place) + 1 : end if end >= 0 else None]
        try:
            row = msgspec.json.decode(line)
        except (ValueError, RecursionError):
            return {}
        return row if isinstance(row, dict) and "kind" in row else {}


def _status(history: list[dict[str, Any]], is_held: bool, step: int, has_steps: bool) -> RunStatus:
    legs = [row for row in history if row["kind"] == "leg"]
    goal = legs[-1].get("goal") if legs else None
    word = status_of((row for row in history if row["kind"] != "stop"), is_held, has_steps)
    stops = (row for row in history if row["kind"] in ("leg", "stop"))
    return judge_status(word, stops, step, goal if isinstance(goal, int) else None)


def _speed(rows: _Rows) -> float | None:
    times_s = []
    for row in rows.metrics_backward("train"):
        time_s = row["values"].get("step_time")
        if isinstance(time_s, float) and time_s > 0:
            times_s.append(time_s)
        if len(times_s) >= _NUM_TIMED_ROWS:
            break
    return 1 / statistics.median(times_s) if times_s else None


def _best(rows: _Rows) -> BestMetric | None:
    """The best value of the metric by which the run is judged."""
    config: dict[str, Any] = {}
    for row in reversed(list(rows.backward("config"))):
        config.update(row.get("config") or {})
    modes = ("val", "train", TRAIN_EPOCH_MODE)
    monitored = choose_metric(config, {mode: names for mode in modes if (names := _names(rows, mode))})
    if monitored is None:
        return None
    found = rows.values(monitored.mode, monitored.name)
    best = best_of(monitored, np.arange(len(found)), np.array([value for _, value in found]))
    return None if best is None else replace(best, step=int(rows.at(found[best.step][0]).get("step") or 0))


def _names(rows: _Rows, mode: str) -> list[str]:
    """The metrics in the last rows of a mode."""
    last = itertools.islice(rows.metrics_backward(mode), _NUM_NAMED_ROWS)
    return list(dict.fromkeys(name for row in last for name in row["values"]))
