"""Which folders are runs, and which files in them are event files."""

import os
import re
from pathlib import Path

import msgspec

_FILE_NAME = re.compile(r"events-(\d{5,})\.jsonl")
_MAX_LINE_BYTES = 1 << 16
_OWN_FOLDERS = frozenset({"checkpoints", "metrics", "tensorboard", "wandb"})
"""What a run keeps beside its event files: many files, and no runs."""


def process_index_of(path: Path) -> int | None:
    """Which process wrote a file, by its name; None for a file that is no event file."""
    match = _FILE_NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def event_files(folder: Path) -> dict[int, Path]:
    """The event files in a folder by process."""
    if not folder.is_dir():
        return {}
    found = {index: path for path in folder.iterdir() if (index := process_index_of(path)) is not None}
    return dict(sorted(found.items()))


def find_runs(root: str | os.PathLike[str]) -> list[Path]:
    """The folders of runs below a folder, or itself, in the order in which they started.

    Args:
        root: The folder. One that is not there has none.
    """
    found = []
    for folder, inner, files in os.walk(root):
        if any(process_index_of(Path(name)) is not None for name in files):
            found.append(Path(folder))
            inner[:] = [name for name in inner if name not in _OWN_FOLDERS]
    return sorted(found, key=lambda folder: (_started_at(folder), folder))


def _started_at(folder: Path) -> float:
    """When the run's first row was written; when the file was changed, where that cannot be read."""
    path = min(path for path in folder.iterdir() if process_index_of(path) is not None)
    try:
        with path.open("rb") as file:
            return float(msgspec.json.decode(file.readline(_MAX_LINE_BYTES))["t"])
    except (OSError, ValueError, TypeError, KeyError):
        return path.stat().st_mtime
