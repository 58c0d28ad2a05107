"""Finding runs below a folder."""

import os
from pathlib import Path

import msgspec

from trackside.runs.event_file import process_index_of

_MAX_LINE_BYTES = 1 << 16
_OWN_FOLDERS = frozenset({"checkpoints", "metrics", "tensorboard", "wandb"})
"""What a run keeps beside its event files: many files, and no runs."""


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
        if not path.is_file():  # opening a pipe would wait for its writer
            return 0.0
        with path.open("rb") as file:
            return float(msgspec.json.decode(file.readline(_MAX_LINE_BYTES))["t"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return path.lstat().st_mtime
