"""A run at a glance, for lists of many runs: what `Run` has too, of one process and without verdicts.

Of a file larger than `MAX_READ_BYTES`, only the beginning and the end are read.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trackside.files import open_regular
from trackside.runs.best_metric import BestMetric, best_metric_of
from trackside.runs.event_file import EventFile
from trackside.runs.logged_step_times import TIMED_MODES, step_times_of
from trackside.runs.row_collector import RowCollector
from trackside.runs.run_folders import process_index_of
from trackside.runs.run_legs import legs_of
from trackside.runs.run_status import UNKNOWN, is_held, status_of
from trackside.runs.status_words import RunStatus, judge_status

MAX_READ_BYTES = 64 << 20
_END_BYTES = 8 << 20


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
    """One over the run's step time, the median over its clean steps; None if no clean step was timed."""
    best: BestMetric | None
    is_best_of_all: bool
    """Whether all rows were read."""
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
    rows, is_whole = _read(file)
    status = _status(rows, is_held(path))
    changed_at = _changed_at(path)
    return Glance(
        path,
        status.word,
        status.stop_reason,
        rows.step,
        rows.epoch,
        _speed(rows, status.word),
        _best(rows),
        is_whole,
        rows.started_at or changed_at,
        rows.ended_at or changed_at,
    )


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read(path: Path) -> tuple[RowCollector, bool]:
    """The rows of a file, and whether these are all.

    Raises:
        OSError: It cannot be read, or is not a regular file.
    """
    rows, size = RowCollector(), os.path.getsize(path)
    is_whole = size <= MAX_READ_BYTES
    for block in EventFile(path).blocks() if is_whole else _ends(path, size):
        rows.add_block(block)
    return rows, is_whole


def _ends(path: Path, size: int) -> Iterator[bytes]:
    """The whole lines at the beginning and at the end of a file."""
    with open_regular(path) as file:
        head = file.read(_END_BYTES)
        yield head[: head.rfind(b"\n") + 1]
        file.seek(size - _END_BYTES)
        tail = file.read(_END_BYTES)
        yield tail[tail.find(b"\n") + 1 : tail.rfind(b"\n") + 1]


def _status(rows: RowCollector, is_held: bool) -> RunStatus:
    legs = list(rows.events("leg"))
    goal = legs[-1].get("goal") if legs else None
    has_steps = not {"train", "default"}.isdisjoint(rows.metrics)
    word = UNKNOWN if rows.is_newer else status_of(rows.events("format", "leg", "status"), is_held, has_steps)
    return judge_status(word, rows.events("leg", "stop"), rows.step, goal if isinstance(goal, int) else None)


def _speed(rows: RowCollector, status: str) -> float | None:
    tables = {mode: store.table() for mode, store in rows.metrics.items() if mode in TIMED_MODES}
    times = step_times_of(tables, legs_of(rows, status), rows.events("compile", "capture", "checkpoint"))
    return 1 / times.median_s if times.median_s else None


def _best(rows: RowCollector) -> BestMetric | None:
    """The best value of the metric by which the run is judged."""
    config: dict[str, Any] = {}
    for row in rows.events("config"):
        config.update(row.get("config") or {})
    return best_metric_of(config, {mode: store.table() for mode, store in rows.metrics.items()})
