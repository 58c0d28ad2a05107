"""The checks of `trackside doctor`. They are independent: one that fails is reported, and the others still run."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from trackside.logger.environment import git_state
from trackside.logger.redact import REDACTED, is_secret_name, redact
from trackside.optional import EXTRAS
from trackside.text import num_bytes

PACKAGES = ("trackside", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "msgspec", "rich")
PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm60-plugin", "jax-rocm7-plugin", "libtpu", "jax-metal")
VARIABLES = (
    "JAX_",
    "XLA_",
    "TF_CPP_",
    "TF_XLA_",
    "CUDA_",
    "NVIDIA_",
    "ROCR_",
    "HIP_",
    "TPU_",
    "LIBTPU_",
    "NCCL_",
    "TRACKSIDE_",
)
"""Prefixes of the environment variables that change how jax and trackside behave."""
MIN_FREE_BYTES = 1 << 30


@dataclass(frozen=True)
class Check:
    """The result of a check."""

    name: str
    status: Literal["ok", "note", "failed"]
    """`note` is worth a look; `failed` does not work or could not be determined."""
    lines: list[str]
    """The result for people."""
    details: dict[str, Any] = field(default_factory=dict)
    """The result for programs, with more detail."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def examine(timeout_s: float) -> list[Check]:
    """Run all checks.

    Args:
        timeout_s: How long to wait for jax and its profiler.
    """
    return [
        *_safely("versions", check_versions),
        *_safely("machine", check_machine),
        *_safely("jax", lambda: check_jax(timeout_s)),
        *_safely("optional packages", check_optional_packages),
        *_safely("disk", check_disk),
        *_safely("variables", check_variables),
        *_safely("terminal", check_terminal),
        *_safely("git", check_git),
    ]


def _safely(name: str, check: Callable[[], Iterator[Check]]) -> list[Check]:
    """The results of a check, or its failure: the other checks are useful whatever is wrong with this one."""
    found: list[Check] = []
    try:
        found.extend(check())
    except Exception as error:
        found.append(Check(name, "failed", [f"could not be determined: {type(error).__name__}: {error}"]))
    return found


def check_versions() -> Iterator[Check]:
    """Python and the packages that training depends on."""
    yield Check("python", "ok", [f"{platform.python_version()}  {sys.executable}"], {"executable": sys.executable})
    found = {package: _version(package) for package in (*PACKAGES, *PLUGINS)}
    installed = {package: version for package, version in found.items() if version}
    missing = [package for package in PACKAGES if package not in installed]
    lines = _in_lines([f"{package} {version}" for package, version in installed.items()])
    lines += [f"not installed: {', '.join(missing)}"] if missing else []
    yield Check("packages", "failed" if missing else "ok", lines, installed)


def check_machine() -> Iterator[Check]:
    """The system, its cores and its memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    details = {"platform": platform.platform(), "cores": cores, "memory_bytes": memory}
    yield Check("machine", "ok", [f"{platform.platform()}", f"{cores} cores, {num_bytes(memory)} of memory"], details)


def check_jax(timeout_s: float) -> Iterator[Check]:
    """Devices, compilation cache and profiler, checked in a separate process, which can be killed if a driver hangs."""
    command = [sys.executable, "-m", "trackside.cli.doctor_probe"]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False)
        output, errors, end = done.stdout, done.stderr, f"the process ended with exit code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        output, errors, end = error.stdout or b"", error.stderr or b"", f"no answer within {timeout_s:g} s"
    answers = {answer["name"]: answer for line in output.splitlines() for answer in _parsed(line)}
    last_words = [line for line in errors.decode(errors="replace").splitlines() if line.strip()][-1:]
    for name in ("devices", "compile cache", "profiler"):
        if name in answers:
            yield Check(**answers[name])
        else:
            yield Check(name, "failed", [end, *(redact(line) for line in last_words)])


def _parsed(line: bytes) -> Iterator[dict[str, Any]]:
    """The answer in a line of the probe's output; none for lines that a driver printed."""
    try:
        yield msgspec.json.decode(line)
    except msgspec.DecodeError:
        return


def check_optional_packages() -> Iterator[Check]:
    """Optional packages, and how to install the missing ones."""
    versions = {module: _version(_distribution(module)) for module in EXTRAS}
    lines = _in_lines([f"{module} {version}" for module, version in versions.items() if version])
    for module, version in versions.items():
        if not version:
            lines.append(f"{module} is not installed: pip install 'trackside[{EXTRAS[module]}]'")
    yield Check("optional packages", "ok", lines or ["none"], versions)


def check_disk() -> Iterator[Check]:
    """Free space where runs and captures are written."""
    places = {"working directory": Path.cwd(), "temporary files": Path(tempfile.gettempdir())}
    free = {name: shutil.disk_usage(path).free for name, path in places.items()}
    lines = [f"{num_bytes(free[name])} free for {name}: {redact(str(path))}" for name, path in places.items()]
    yield Check("disk", "note" if min(free.values()) < MIN_FREE_BYTES else "ok", lines, free)


def check_variables() -> Iterator[Check]:
    """Environment variables that change how jax and trackside behave; secrets are redacted."""
    found = {
        name: REDACTED if is_secret_name(name) else redact(value)
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLES)
    }
    yield Check("variables", "ok", [f"{name}={value}" for name, value in found.items()] or ["none"], found)


def check_terminal() -> Iterator[Check]:
    """What the terminal can show."""
    from trackside.cli.output import open_console

    console = open_console()
    shown = "a terminal" if console.is_terminal else "not a terminal (a pipe or a file)"
    colours = console.color_system or "no colors"
    details = {
        "is_terminal": console.is_terminal,
        "width": console.width,
        "colours": console.color_system,
        "encoding": console.encoding,
        "term": os.environ.get("TERM"),
    }
    line = f"{shown}, {console.width} columns, {colours}, {console.encoding}, TERM={details['term'] or ''}"
    yield Check("terminal", "ok" if console.encoding.startswith("utf") else "note", [line], details)


def check_git() -> Iterator[Check]:
    """The git state of the working directory, which each run records."""
    state = git_state(Path.cwd())
    if state is None:
        why = "git is not installed" if shutil.which("git") is None else "the working directory is not in a repository"
        yield Check("git", "note", [f"{why}: runs will not record the state of the code"])
    else:
        changed = "with uncommitted changes" if state["dirty"] else "clean"
        yield Check("git", "ok", [f"commit {state['commit'][:12]}, {changed}"], state)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _distribution(module: str) -> str:
    """The name under which a package is installed."""
    return {"sklearn": "scikit-learn"}.get(module, module)


def _in_lines(words: list[str], width: int = 60) -> list[str]:
    """Words, separated by commas, in lines of at most `width` columns."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 2 + len(word) <= width:
            lines[-1] += f", {word}"
        else:
            lines.append(word)
    return lines
