"""Captures as files that Perfetto opens: the JSON that JAX wrote beside a trace, or one made from the trace.

Perfetto reads the trace event format of Chrome, also compressed by gzip. Events of one track have to nest: one that
begins inside another and ends after it goes to a further track of the same name.
"""

import gzip
import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from trackside.errors import TraceError
from trackside.trace.event_columns import MISSING
from trackside.trace.trace_files import SUFFIX, read_trace_file
from trackside.trace.xspace import Plane, read_xspace

JSON_SUFFIX = ".trace.json.gz"
_PS_PER_US = 1e6
_NUMBERS = ("step_num", "run_id", "device_ordinal")
_TEXTS = ("hlo_op", "hlo_module", "tf_op")


def export_captures(captures: Sequence[Mapping[str, Any]], directory: Path) -> Iterator[Path]:
    """Write the captures of a run for Perfetto.

    Args:
        captures: The rows `capture` of a run, as `Run.captures`.
        directory: Where to write `<session>-<host>.trace.json.gz`, with a number for a capture whose row names no
            session, and `<session>-2-<host>.trace.json.gz` where an earlier capture has the name; made where it is
            missing.

    Yields:
        Each file that was written.

    Raises:
        TraceError: There is no capture, or none of them can be found.
    """
    files_by_target = _name_files(captures)
    if not files_by_target:
        lost = f"; its {len(captures)} are no longer where they were written" if captures else ""
        raise TraceError(f"--captures: the run has no capture{lost}. A JaxProfilerConfig among the callbacks takes one")
    directory.mkdir(parents=True, exist_ok=True)
    for name, file in files_by_target.items():
        export_trace(file, directory / name)
        yield directory / name


def _name_files(captures: Sequence[Mapping[str, Any]]) -> dict[str, Path]:
    """The trace files by the name to write each to.

    Sessions of two captures may end alike, as in `first/step_1` and `second/step_1`. A later one gets a number, the
    same for all its hosts.
    """
    files_by_target: dict[str, Path] = {}
    for number, row in enumerate(captures, start=1):
        files = _trace_files(Path(row["path"]))
        session = _session(row, number)
        sessions = itertools.chain([session], (f"{session}-{other}" for other in itertools.count(2)))
        named = ({_target_name(each, file): file for file in files} for each in sessions)
        files_by_target |= next(each for each in named if each.keys().isdisjoint(files_by_target))
    return files_by_target


def _target_name(session: str, file: Path) -> str:
    return f"{session}-{file.name.removesuffix(SUFFIX)}{JSON_SUFFIX}"


def _session(row: Mapping[str, Any], number: int) -> str:
    """What a capture is called. The name comes from the run's file, and must not lead out of a directory."""
    return Path(str(row.get("session") or "")).name or str(number)


def _trace_files(capture: Path) -> list[Path]:
    return sorted(capture.glob(f"*{SUFFIX}"))


def export_trace(trace_file: Path, target: Path) -> bool:
    """Write a trace for Perfetto.

    Args:
        trace_file: A *.xplane.pb file.
        target: The file to write, by convention *.trace.json.gz.

    Returns:
        Whether it was made from the trace; False if there was one beside it, which was copied.

    Raises:
        TraceError: The trace cannot be read.
    """
    beside = trace_file.with_name(trace_file.name.removesuffix(SUFFIX) + JSON_SUFFIX)
    if beside.is_file():
        shutil.copyfile(beside, target)
        return False
    write_perfetto(trace_file, target)
    return True


def write_perfetto(trace_file: Path, target: Path) -> None:
    """Make a file for Perfetto from a trace.

    Args:
        trace_file: A *.xplane.pb file.
        target: The file to write.
    """
    encode = msgspec.json.Encoder().encode
    with gzip.open(target, "wb", compresslevel=6) as file:
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[')
        separator = b""
        for event in _events(trace_file):
            file.write(separator + encode(event))
            separator = b",\n"
        file.write(b"]}\n")


def _events(trace_file: Path) -> Iterator[dict[str, Any]]:
    for process, plane in enumerate(read_xspace(read_trace_file(trace_file)).planes, start=1):
        if len(plane.events):
            yield _name("process_name", process, 0, plane.name)
            yield from _plane_events(process, plane)


def _plane_events(process: int, plane: Plane) -> Iterator[dict[str, Any]]:
    """The events of a plane's lines, each line on as many tracks as its events need to nest."""
    columns = {name: plane.events.stat(name) for name in (*_NUMBERS, *_TEXTS) if name in plane.events.sparse_stats}
    num_tracks = 0
    for line, line_name in enumerate(plane.line_names):
        chosen = np.flatnonzero(plane.events.line == line)
        start, end = plane.events.start_ps[chosen], plane.events.end_ps[chosen]
        open_ends: list[list[int]] = []
        for index in np.lexsort((-end, start)).tolist():  # what holds another comes before it
            event = int(chosen[index])
            yield {
                "ph": "X",
                "pid": process,
                "tid": num_tracks + 1 + _find_track(open_ends, int(start[index]), int(end[index])),
                "ts": int(start[index]) / _PS_PER_US,
                "dur": int(end[index] - start[index]) / _PS_PER_US,
                "name": plane.metadata(int(plane.events.metadata_id[event])).name,
                "args": _arguments(plane, columns, event),
            }
        for track in range(len(open_ends)):
            yield _name("thread_name", process, num_tracks + 1 + track, line_name)
        num_tracks += len(open_ends)


def _find_track(open_ends: list[list[int]], start_ps: int, end_ps: int) -> int:
    """The first track on which an event nests; `open_ends` has, by track, the ends of the events that go on."""
    for track, ends in enumerate(open_ends):
        while ends and ends[-1] <= start_ps:
            ends.pop()
        if not ends or end_ps <= ends[-1]:
            ends.append(end_ps)
            return track
    open_ends.append([end_ps])
    return len(open_ends) - 1


def _arguments(plane: Plane, columns: dict[str, np.ndarray], event: int) -> dict[str, int | str]:
    values = {name: int(column[event]) for name, column in columns.items() if column[event] != MISSING}
    return {name: plane.text(value) if name in _TEXTS else value for name, value in values.items()}


def _name(kind: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": track, "name": kind, "args": {"name": name}}
