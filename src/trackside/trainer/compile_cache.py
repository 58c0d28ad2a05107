"""Compiled programs on disk, so that the next leg of a run does not compile them again.

    compiled/
      jit_train_call-1f0c...        a program: a mark, a checksum, and what JAX has made of it
      .jit_train_call-1f0c...tmp    one that is being written, or was when the process died

A program has its name when all of it is there, and is used only if its checksum is right, since XLA runs whatever it is
given. One that is damaged is compiled again and replaced. Nothing in here may end a training: what fails is logged
once.
"""

import contextlib
import functools
import hashlib
import logging
import os
import platform
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from trackside import jax_internals
from trackside.run_layout import COMPILED_FOLDER
from trackside.text import num_bytes

LOGGER = logging.getLogger(__name__)

RUN = "run"
"""What `TrainerConfig.compile_cache` is by default: the folder is the run's."""
MIN_COMPILE_S = 0.1
"""Programs that compile in less are compiled each time."""
MAX_BYTES = 2 << 30
"""How much a folder may hold; what was used longest ago is deleted first."""

_MARK = b"trackside program 1\n"
_NUM_DIGEST_BYTES = 32
_MAX_TEMPORARY_AGE_S = 3600.0
_JAX_MIN_COMPILE_S = 1.0  # JAX's default; another value is the user's


class CompileCache:
    """The compiled programs in one folder, which is made with the first of them.

    Args:
        folder: The folder. Several processes may use it at once.
        may_write: Whether something may be written now.
        max_bytes: How much it may hold.
    """

    def __init__(self, folder: Path, may_write: Callable[[], bool] = lambda: True, max_bytes: int = MAX_BYTES):
        self.folder = folder
        self._may_write = may_write
        self._max_bytes = max_bytes
        self._has_failed = False

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """For the length of a block, take what this thread compiles from here, unless the user has a cache of JAX's."""
        if user_decides():
            yield
            return
        wanted_s = jax_internals.config_value("jax_persistent_cache_min_compile_time_secs")
        min_compile_s = MIN_COMPILE_S if wanted_s in (None, _JAX_MIN_COMPILE_S) else wanted_s
        with jax_internals.programs_kept_in(self, machine(), min_compile_s):
            yield

    def get(self, key: str) -> bytes | None:
        """A program; None if there is none, or none that is whole."""
        path = self.folder / key
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._report("read", error)
            return None
        start = len(_MARK) + _NUM_DIGEST_BYTES
        value = content[start:]
        if content[:start] != _MARK + _digest(value):
            LOGGER.warning("%s is damaged; the program is compiled again", path)
            return None
        with contextlib.suppress(OSError):  # of a folder that may only be read
            os.utime(path)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Keep a program, in place of one with this key."""
        size = len(_MARK) + _NUM_DIGEST_BYTES + len(value)
        if self._has_failed or size > self._max_bytes or not self._may_write():
            return
        temporary = self.folder / f".{key}.{uuid.uuid4().hex}.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(size)
            try:
                temporary.write_bytes(_MARK + _digest(value) + value)
                temporary.replace(self.folder / key)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            self._report("written to", error)

    def _report(self, what: str, error: OSError) -> None:
        if not self._has_failed:
            LOGGER.warning("compile_cache: %s cannot be %s (%s); training continues", self.folder, what, error)
        self._has_failed = True

    def _make_room(self, size: int) -> None:
        """Delete what was used longest ago, until there is room, and what killed processes have left."""
        found, oldest_s = [], time.time() - _MAX_TEMPORARY_AGE_S
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another process may be deleting it
                status = path.stat()
                if path.name.startswith(".") and path.suffix == ".tmp":
                    if status.st_mtime < oldest_s:  # a newer one is being written
                        path.unlink()
                elif _is_program(path):  # and not a file of the user's
                    found.append((status.st_mtime, status.st_size, path))
        total = size + sum(num for _, num, _ in found)
        for _, num, path in sorted(found):
            if total <= self._max_bytes:
                return
            LOGGER.debug("%s is deleted, %s", path, num_bytes(num))
            with contextlib.suppress(OSError):
                path.unlink()
            total -= num


def cache_for(choice: str | None, run: Path | None, may_write: Callable[[], bool]) -> CompileCache | None:
    """The cache that a config asks for.

    Args:
        choice: `TrainerConfig.compile_cache`.
        run: The run's folder, if it has one.
        may_write: Whether the run's folder may be written to now.
    """
    if choice is None:
        return None
    if choice != RUN:
        return CompileCache(Path(choice))
    return None if run is None else CompileCache(run / COMPILED_FOLDER, may_write)


def user_decides() -> bool:
    """Whether the user has set up JAX's own compilation cache, or switched it off."""
    value = jax_internals.config_value
    return bool(value("jax_compilation_cache_dir")) or value("jax_enable_compilation_cache") is False


@functools.cache
def machine() -> str:
    """What programs for the CPU depend on: its instructions. Others may read the same folder."""
    features = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.partition(":")[0].strip() in ("flags", "Features"):
                features = " ".join(sorted(line.partition(":")[2].split()))
                break
    return f"{platform.system()} {platform.machine()} {features or platform.processor()}"


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=_NUM_DIGEST_BYTES).digest()


def _is_program(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(len(_MARK)) == _MARK
    return False
