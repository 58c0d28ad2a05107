"""What a run ran on: versions, machine, command line and the state of the code."""

import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from trackside.logger.redact import redact, redact_command

PACKAGES = ("trackside", "jax", "jaxlib", "flax", "optax", "numpy")
GIT_TIMEOUT_S = 5.0


def gather_environment(process_index: int) -> dict[str, Any]:
    """The fields of an environment row. Secrets on the command line are replaced; jax is not imported.

    Args:
        process_index: Which process of the run this is.

    Returns:
        JSON-able fields; `git` is absent where the working directory is in no repository.
    """
    environment: dict[str, Any] = {
        "python": platform.python_version(),
        "versions": package_versions(),
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "process_index": process_index,
        "command": redact_command(sys.argv),
        "working_directory": redact(str(Path.cwd())),
    }
    if git := git_state(Path.cwd()):
        environment["git"] = git
    return environment


def package_versions() -> dict[str, str]:
    """The installed versions of what a training rests on."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def git_state(directory: Path) -> dict[str, Any] | None:
    """The commit that `directory` is at and whether tracked files differ from it; None without a repository."""
    try:
        output = subprocess.run(
            ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"],
            cwd=directory,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # look, and write nothing into the repository
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    headers = dict(line[2:].split(" ", 1) for line in output.splitlines() if line.startswith("# "))
    commit = headers.get("branch.oid", "(initial)")
    if commit == "(initial)":
        return None
    return {"commit": commit, "dirty": any(not line.startswith("#") for line in output.splitlines())}
