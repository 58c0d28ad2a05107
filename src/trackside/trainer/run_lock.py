"""One training per folder: a lock that dies with its process."""

import contextlib
import fcntl
import os
import pathlib
import socket
from typing import Self

from trackside.errors import ConfigError

LOCK_FILE_NAME = ".lock"


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
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder / LOCK_FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise ConfigError(
                f"{self._folder} is in use by a training that is still running ({owner}); wait for it, stop it, or "
                "choose another folder"
            ) from None
        except OSError:  # a file system without locks: better to train than to refuse
            os.close(descriptor)
            return self
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
        self._descriptor = descriptor
        return self

    def __exit__(self, *exception: object) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None
