"""Which folders are runs, and which files in them are event files."""

import itertools
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from trackside.files import open_regular
from trackside.run_layout import WHERE_A_RUN_IS_GIVEN_ITS_FOLDER, event_file_name

_FILE_NAME = re.compile(r"events-([0-9]{5,9})\.jsonl")
_NUM_SHOWN = 4
_MAX_LINE_BYTES = 1 << 16
_OWN_FOLDERS = frozenset({"checkpoints", "metrics", "tensorboard", "wandb"})
"""What a run keeps next to its event files: many files, and no runs."""


def process_index_of(path: Path) -> int | None:
    """Which process wrote a file, by its name; None for a file that is not an event file."""
    match = _FILE_NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def event_files(folder: Path) -> dict[int, Path]:
    """The event files in a folder by process. Pipes, devices and the like are left out, whatever they are called."""
    try:
        names = os.listdir(folder)
    except (OSError, ValueError):  # a name with a NUL in it
        return {}
    named = {index: folder / name for name in names if (index := process_index_of(Path(name))) is not None}
    return {index: named[index] for index in sorted(named) if _is_file(named[index])}


def find_runs(root: str | os.PathLike[str]) -> list[Path]:
    """The folders of runs below a folder, or itself, in the order in which they started.

    Args:
        root: The folder. One that is not there has none.
    """
    found = []
    for folder, inner, files in os.walk(root):
        if any(process_index_of(Path(name)) is not None and _is_file(Path(folder, name)) for name in files):
            found.append(Path(folder))
            inner[:] = [name for name in inner if name not in _OWN_FOLDERS]
    return sorted(found, key=lambda folder: (_started_at(folder), folder))


def why_no_run(path: Path) -> str:
    """Why there is no run at a path, and where there are some."""
    if below := list(itertools.islice(_runs_close_below(path), _NUM_SHOWN + 1)):
        shown = ", ".join(map(str, below[:_NUM_SHOWN])) + (" and others" if len(below) > _NUM_SHOWN else "")
        return f"path: {str(path)!r} is no run, but holds some; open one of them: {shown}"
    if not os.path.exists(path):  # which has no objection to odd names
        return f"path: there is no run at {str(path)!r}, nor anything else; give the folder of a run"
    return (
        f"path: there is no run at {str(path)!r}, which has no {event_file_name(0)}; give the folder that a training "
        f"was given ({WHERE_A_RUN_IS_GIVEN_ITS_FOLDER}), or one of the event files in it"
    )


def holds_runs(path: Path) -> bool:
    """Whether a folder holds runs, in itself or in folders of it."""
    return next(_runs_close_below(path), None) is not None


def _runs_close_below(folder: Path) -> Iterator[Path]:
    """The runs in a folder and in the folders of it, by name. It takes no long search, wherever it begins."""
    for pattern in ("*", "*/*"):
        try:
            yield from sorted({path.parent for path in folder.glob(f"{pattern}/{event_file_name(0)}")})
        except (OSError, ValueError):  # a folder that must not be read, or cannot be there
            return


def _started_at(folder: Path) -> float:
    """When the run's first row was written; when the file was changed, if that cannot be read."""
    path = next(iter(event_files(folder).values()), folder)
    try:
        with open_regular(path) as file:
            first_line = file.read(_MAX_LINE_BYTES).partition(b"\n")[0]
        started_at = float(msgspec.json.decode(first_line)["t"])
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        started_at = math.nan
    return started_at if math.isfinite(started_at) else _changed_at(path)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # gone since
        return 0.0


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)
