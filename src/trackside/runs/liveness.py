"""Whether somebody still trains a run: its lock tells, which dies with the process that holds it."""

import fcntl
import os
import socket
import time
from pathlib import Path

from trackside.run_layout import EVENT_FILE_PATTERN, LOCK_FILE_NAME

RECENT_S = 60.0
"""A file that another machine wrote to so recently is taken for one that is being written."""


def is_held(folder: Path) -> bool:
    """Whether a training holds the folder's lock.

    A lock of another machine may not be seen from here: then what was written in the last minute tells.

    Args:
        folder: The run's folder.
    """
    try:
        descriptor = os.open(folder / LOCK_FILE_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # never locked, or not ours to look at
        return False
    try:
        # Shared: two who look at the same time do not disturb each other.
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
    newest = max((path.stat().st_mtime for path in folder.glob(EVENT_FILE_PATTERN)), default=0.0)
    return time.time() - newest < RECENT_S
