"""How a run stands: what its last rows say, and whether a process still holds its lock, which dies with the process."""

import fcntl
import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trackside.run_layout import EVENT_FILE_PATTERN, LOCK_FILE_NAME

RECENT_S = 60.0
"""A file that another machine wrote to within this time is taken for one that is being written."""
RUNNING, DEAD, NOT_STARTED, UNKNOWN = "running", "dead", "not started", "unknown"
"""The words for a run that did not say how it ended: a process holds its lock, none does, it was only built, it cannot
be read."""


def status_of(rows: Iterable[Mapping[str, Any]], is_held: bool, has_steps: bool = True) -> str:
    """The word for how a run stands.

    Args:
        rows: Its rows `format`, `leg` and `status`, in order.
        is_held: Whether a training holds its lock.
        has_steps: Whether it has metrics of training, as one has that logs without a trainer and so without legs.
    """
    word, was_opened_again, was_trained_again = "", False, False
    has_rows, has_begun = False, has_steps
    for row in rows:
        has_rows = True
        if row["kind"] == "status":
            word, was_opened_again, was_trained_again = str(row.get("status")), False, False
        elif row["kind"] == "leg":
            was_trained_again = has_begun = True
        else:
            was_opened_again = True
    # Opened again, it may only have been evaluated, or a training is being prepared, which takes the lock.
    if word and not was_trained_again and not (was_opened_again and is_held):
        return word
    if is_held:
        return RUNNING
    return NOT_STARTED if has_rows and not has_begun else DEAD


def is_held(folder: Path) -> bool:
    """Whether a training holds the folder's lock.

    A lock of another machine may not be seen from here: then it counts whether anything was written in the last minute.

    Args:
        folder: The run's folder.
    """
    try:
        descriptor = os.open(folder / LOCK_FILE_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # never locked, or not ours to look at
        return False
    try:
        # Shared: two readers at the same time do not disturb each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        owner = os.read(descriptor, 200).decode(errors="replace").strip()
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return _was_written_recently(folder)
    finally:
        os.close(descriptor)
    is_elsewhere = bool(owner) and not owner.endswith(f" on {socket.gethostname()}")
    return is_elsewhere and _was_written_recently(folder)


def _was_written_recently(folder: Path) -> bool:
    newest = max((_changed_at(path) for path in folder.glob(EVENT_FILE_PATTERN)), default=0.0)
    return time.time() - newest < RECENT_S


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # gone since
        return 0.0
