"""One training per folder: a lock that dies with its process."""

import contextlib
import fcntl
import logging
import os
import pathlib
import socket
import time
from typing import Self

from trackside.errors import ConfigError
from trackside.logger.run_directory import unusable_folder
from trackside.run_layout import LOCK_FILE_NAME

LOGGER = logging.getLogger(__name__)

MAX_WAIT_S = 10.0
"""How long a training waits at most for readers, who hold the lock for microseconds."""
RETRY_S = 0.001


class RunLock:
    """Held while a training writes to a folder. Released by the system when the process ends, however it ends.

    Args:
        folder: The folder; None for a training that writes nothing.
    """

    def __init__(self, folder: pathlib.Path | None):
        self._folder = folder
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        if self._folder is None:
            return self
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder / LOCK_FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unusable_folder(self._folder, error) from error
        self._descriptor = descriptor
        try:
            _lock(descriptor, self._folder)
            with contextlib.suppress(OSError):  # a full disk: the lock holds, only its owner has no name
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{_own_name()}\n".encode())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def check_unlocked(folder: pathlib.Path | None) -> None:
    """Refuse a folder that a training writes to at this moment, before anything of another is written there.

    Args:
        folder: The folder, which need not exist; None for none.
    """
    if folder is None:
        return
    try:
        descriptor = os.open(folder / LOCK_FILE_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # never locked
        return
    try:
        if _is_trained(descriptor):
            raise _in_use(descriptor, folder)
    except OSError:  # a file system without locks
        pass
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: pathlib.Path) -> None:
    """Lock a file; on a file system without locks it stays unlocked: better to train than to refuse."""
    deadline_s = time.monotonic() + MAX_WAIT_S
    try:
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            if _is_trained(descriptor) or time.monotonic() > deadline_s:
                raise _in_use(descriptor, folder)
            time.sleep(RETRY_S)
    except OSError:
        LOGGER.warning("%s cannot be locked: make sure that no other training writes there", folder)


def _is_trained(descriptor: int) -> bool:
    """Whether a training holds the lock. Readers, and trainings that only check, share it for a moment."""
    is_free = _try_lock(descriptor, fcntl.LOCK_SH)
    if is_free:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    return not is_free


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _own_name() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"


def _in_use(descriptor: int, folder: pathlib.Path) -> ConfigError:
    owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
    if owner == _own_name():
        return ConfigError(
            f"{folder} is in use by this process ({owner}): another run is open there; close it first, or choose "
            "another folder"
        )
    return ConfigError(
        f"{folder} is in use by a training that is still running ({owner}); wait for it, stop it, or choose "
        "another folder"
    )
