"""What the processes need that tests start with Python."""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent


def environment(compile_cache: Path | None = None) -> dict[str, str]:
    """The environment of a process that imports this repository's tests.

    Args:
        compile_cache: Where the processes of a test keep what they compile, for each other. Not for those that are
            killed at a moment left to chance, who may leave half of a file.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # an empty one would be the working directory
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if compile_cache is not None:
        found |= {
            "JAX_COMPILATION_CACHE_DIR": str(compile_cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    return found
