"""Files that a reader finds as they were or as they are meant to be, never half of them."""

import os
import pathlib
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


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
