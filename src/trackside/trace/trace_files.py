"""Where the files of a trace lie."""

import os
from pathlib import Path

from trackside.errors import TraceError
from trackside.files import read_regular

SUFFIX = ".xplane.pb"
MAX_TRACE_BYTES = 1 << 32
"""JAX's profiler cannot write half as much."""


def find_trace_files(source: Path) -> list[Path]:
    """The files of one session: one per host.

    Args:
        source: A file; a session's directory; a directory that holds sessions at `plugins/profile/<session>` or
            anywhere below it. Of several sessions, the newest.

    Raises:
        TraceError: If there is none.
    """
    # os.path: a name that is too long, as damage may leave it, is one that is not there.
    exists = os.path.exists(source)
    if exists and not source.is_dir():
        return [source]
    if not exists:
        raise TraceError(f"{source}: no such file or directory. Give a *{SUFFIX} file, or a directory that holds one.")
    found = source.glob(f"*{SUFFIX}"), source.rglob(f"*{SUFFIX}")
    files = next((files for each in found if (files := sorted(file for file in each if file.is_file()))), [])
    if not files:
        raise TraceError(
            f"{source}: holds no *{SUFFIX} file, also not in plugins/profile/<session>/. Give the directory that was "
            "passed to jax.profiler.start_trace, and check that the trace was stopped: it is written only then."
        )
    newest = max(files, key=lambda file: (file.stat().st_mtime_ns, str(file))).parent
    return [file for file in files if file.parent == newest]


def read_trace_file(path: Path) -> bytes:
    """A file's bytes.

    Raises:
        TraceError: If it cannot be read.
    """
    try:
        return read_regular(path, MAX_TRACE_BYTES)
    except OSError as error:
        raise TraceError(
            f"{path}: cannot be read ({error.strerror}). Check that it is a file that you may read."
        ) from error
