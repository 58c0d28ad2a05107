"""Files that a reader finds as they were or as they are meant to be, never half of them, and that never hang it."""

import errno
import io
import os
import pathlib
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A path to write to; what is there at the end of the block replaces the file, after it has reached the disk.

    Args:
        path: The file to replace. Its folder is made where it is missing.

    Raises:
        OSError: It cannot be written; the old file is still there.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Replace a file by text (in UTF-8) or bytes; see `replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def open_regular(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a file to read its bytes, unbuffered, if it is a regular one.

    A pipe would block whoever opens it, and a device may never end.

    Args:
        path: The file, or a link to one.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """The content of a regular file.

    Args:
        path: The file, or a link to one.
        max_bytes: The most that it may have.

    Raises:
        OSError: It cannot be read, is not a regular file, or has more bytes.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes", os.fspath(path))
        return file.read()


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
