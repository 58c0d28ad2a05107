"""Measuring in a process of its own: its time and its peak of memory have nothing in them of what ran before."""

import json
import subprocess
import sys
from typing import Any


def measure(code: str, *arguments: str) -> dict[str, Any]:
    """Run a piece of Python in a fresh interpreter.

    Args:
        code: What to run. The last line that it prints is what it measured, as JSON.
        *arguments: What it finds in `sys.argv[1:]`.

    Returns:
        What it measured.

    Raises:
        RuntimeError: It failed; the end of what it wrote to stderr.
    """
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])
