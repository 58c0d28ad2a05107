"""Checkpoints on disk: written in the background by Orbax, committed by a rename, verified when they are read.

    checkpoints/
      100/                  a committed step
        manifest.json       its own checksum, the size and checksum of every other file, and the record
        state/              what Orbax wrote: all trees as one, in less than half of the time of one by one
      .saving-200/          a step that is being written, or was when the process died

A step exists when its folder has its name. It gets the name last, after every byte was written and its checksum taken,
so a process may die at any moment. A step that is deleted loses its name first. Bits that rot on disk are found when
they are read: Orbax restores them silently, so every file is checked against the manifest.
"""

import concurrent.futures.thread  # noqa: F401 - its own hook has to be registered before `_finish_saves`
import contextlib
import errno
import functools
import json
import logging
import os
import pathlib
import shutil
import stat
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import jax

from trackside.errors import CheckpointError
from trackside.jax_internals import run_before_threads_end
from trackside.logger.console import root_handlers_kept
from trackside.processes import JAX_PROCESSES, Processes

LOGGER = logging.getLogger(__name__)

FORMAT_VERSION = 3
_FIRST_JOINED = 3
"""The first format that has all trees in one; before it, each had a folder of its own."""

MANIFEST = "manifest.json"
_STATE = "state"
_CHUNK_BYTES = 1 << 22

_orbax = threading.Lock()
"""Held while Orbax works: it numbers its operations per process, and mixes up those of two trainings in two threads."""

_stores: "weakref.WeakSet[CheckpointStore]" = weakref.WeakSet()


@functools.cache
def _orbax_api() -> Any:
    """Orbax, imported when something is first saved or read: it takes longer than all of trackside."""
    with root_handlers_kept():  # importing Orbax logs, and logging through absl sets up the root logger
        from orbax.checkpoint import v1 as ocp
    return ocp


def _finish_saves() -> None:
    """Let saves that are under way come to their end before the interpreter does."""
    for store in list(_stores):
        store.join()


run_before_threads_end(_finish_saves)  # Orbax saves on thread pools


class CheckpointStore:
    """The checkpoints in one folder.

    Args:
        root: The folder. It is made when the first step is saved.
        processes: The processes that save together.
    """

    def __init__(self, root: str | os.PathLike[str], processes: Processes = JAX_PROCESSES):
        self.root = pathlib.Path(root).absolute()
        self._processes = processes
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        _stores.add(self)

    # --- writing ------------------------------------------------------------------------------------------------

    def save(
        self,
        step: int,
        trees: dict[str, Any],
        record: dict[str, Any],
        is_good: Callable[[], bool] = lambda: True,
        after_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """Save a step. Returns when the arrays may be overwritten; the rest happens in the background.

        A step that is there already is kept, unless it is damaged. An earlier save that is still being written is
        waited for.

        Args:
            step: The step.
            trees: Trees of arrays by name.
            record: What is saved beside them: anything that JSON can hold.
            is_good: Asked in the background before the step is committed; if not, it is dropped.
            after_commit: Called in the background after the step was committed.
        """
        self.wait()
        saving = self.root / f".saving-{step}"
        encoded = self._encode(record)  # now: callbacks and loaders may change what they gave
        decide = self._processes.main_decides
        if not decide(lambda: self._prepare(saving, step), f"saving step {step} in {self.root}"):
            return
        try:
            wait_until_written = _start_writing(saving, _with_leaves(trees))
        except OSError as error:
            self._error = error
            return

        def finish() -> None:
            try:
                wait_until_written()
                if self._processes.is_main and self._commit(saving, step, encoded, is_good):
                    after_commit()
            except Exception as error:
                self._error = error
                if self._processes.is_main:
                    self._clear(saving)

        self._thread = threading.Thread(target=finish, name=f"checkpoint-{step}", daemon=False)
        self._thread.start()

    def _encode(self, record: dict[str, Any]) -> str:
        failure = None
        try:
            return json.dumps(record, allow_nan=False)
        except (TypeError, ValueError) as error:
            failure = CheckpointError(f"a checkpoint in {self.root} could not be written: {error}")
            raise failure from error
        finally:
            self._processes.raise_together(failure)

    def _prepare(self, saving: pathlib.Path, step: int) -> bool:
        """Make room for a step that is to be saved. False if it is not: it is there already, or there is no room."""
        if self._is_there(step):
            return False
        try:
            self._clear(saving)
            self.root.mkdir(parents=True, exist_ok=True)
            saving.mkdir()  # where this fails, threads of Orbax would wait for the folder for five minutes
            saving.rmdir()
        except OSError as error:
            self._error = error
            return False
        return True

    def _is_there(self, step: int) -> bool:
        if step not in self.steps():
            return False
        try:
            self.verify(step)
        except CheckpointError as error:
            LOGGER.warning("a checkpoint is replaced: %s", error)
            self.delete([step])
            return False
        return True

    def _commit(self, saving: pathlib.Path, step: int, record: str, is_good: Callable[[], bool]) -> bool:
        if not is_good():
            self._clear(saving)
            LOGGER.error("step %d is not saved: its state holds values that are not finite", step)
            return False
        manifest = {"format": FORMAT_VERSION, "step": step, "files": _checksums(saving), "record": json.loads(record)}
        (saving / MANIFEST).write_bytes(_sealed(manifest))
        for path in [*saving.rglob("*"), saving]:
            _sync(path)
        os.rename(saving, self.root / str(step))
        _sync(self.root)
        return True

    def join(self) -> None:
        """Wait for the save that is under way, however it ends."""
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> None:
        """Wait for the save that is under way. If it failed, raise what it failed with."""
        self.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise CheckpointError(f"a checkpoint in {self.root} could not be written: {error}") from error

    def delete(self, steps: Iterable[int]) -> None:
        """Delete steps. Each loses its name first, so that none is ever found half deleted."""
        for step in steps:
            folder = self.root / str(step)
            if folder.is_symlink() or not folder.is_dir():
                continue
            doomed = self.root / f".deleting-{step}"
            self._clear(doomed)
            os.rename(folder, doomed)
            self._clear(doomed)

    def clean(self) -> None:
        """Remove what a process that died has left half written or half deleted."""
        if self.root.is_dir():
            for folder in [*self.root.glob(".saving-*"), *self.root.glob(".deleting-*")]:
                self._clear(folder)

    def _clear(self, folder: pathlib.Path) -> None:
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        for leftover in self.root.glob(f"{folder.name}.orbax-checkpoint-tmp*"):
            shutil.rmtree(leftover, ignore_errors=True)

    # --- reading ------------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """The steps that are there, in order. They may still turn out to be damaged."""
        try:
            with os.scandir(self.root) as entries:
                names = [entry.name for entry in entries if entry.name.isdecimal() and entry.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(
                f"checkpoints in {self.root}: the folder cannot be read ({error.strerror})"
            ) from error
        return sorted(int(name) for name in names if str(int(name)) == name)

    def record(self, step: int) -> dict[str, Any]:
        """What was saved beside a step's trees. Only the manifest itself is verified."""
        return self._manifest(step)["record"]

    def verify(self, step: int) -> dict[str, Any]:
        """Check every file of a step against its checksum.

        Returns:
            The step's record.
        """
        manifest, folder = self._manifest(step), self.root / str(step)
        try:
            found = _checksums(folder)
        except OSError as error:
            raise _unreadable(folder, error) from error
        for name in sorted(manifest["files"].keys() | found.keys()):
            expected, got = manifest["files"].get(name), found.get(name)
            if expected != got:
                what = "is missing" if got is None else "does not belong there" if expected is None else "is damaged"
                raise CheckpointError(f"checkpoint {folder}: the file {name} {what}")
        return manifest["record"]

    def load(self, step: int, abstract: dict[str, Any]) -> dict[str, Any]:
        """Load trees of a verified step.

        Args:
            step: The step.
            abstract: By name, the trees to load, as `jax.ShapeDtypeStruct` with the sharding that they shall have.
        """
        wanted = _with_leaves(abstract)
        folder = self.root / str(step)
        try:
            loaded = _load(folder, wanted, self._is_joined(step)) if wanted else {}
        except OSError as error:
            raise CheckpointError(f"checkpoint {folder}: it cannot be read ({error})") from error
        return {name: loaded.get(name, tree) for name, tree in abstract.items()}

    def shapes(self, step: int) -> dict[str, Any]:
        """The shapes of the saved trees by name. Those without leaves are not there."""
        with _orbax:
            metadata = _orbax_api().checkpointables_metadata(str(self.root / str(step))).metadata
        return metadata[_STATE] if self._is_joined(step) else metadata

    def _is_joined(self, step: int) -> bool:
        return self._manifest(step)["format"] >= _FIRST_JOINED

    def _manifest(self, step: int) -> dict[str, Any]:
        path = self.root / str(step) / MANIFEST
        try:
            with _reading(path) as file:
                manifest = _unsealed(file.read())
        except FileNotFoundError:
            raise CheckpointError(f"checkpoint {path.parent}: its manifest is missing") from None
        except OSError as error:
            raise _unreadable(path.parent, error) from error
        except ValueError as error:
            raise CheckpointError(f"checkpoint {path.parent}: the file {MANIFEST} is damaged ({error})") from None
        if manifest["format"] > FORMAT_VERSION:
            raise CheckpointError(
                f"checkpoint {path.parent}: its format {manifest['format']} is newer than {FORMAT_VERSION}, which this "
                "version of trackside reads; update trackside"
            )
        if manifest["step"] != step:
            raise CheckpointError(f"checkpoint {path.parent}: it is step {manifest['step']} under another name")
        return manifest


def _with_leaves(trees: dict[str, Any]) -> dict[str, Any]:
    """Those trees that hold arrays. An optimizer's state may be nothing but empty tuples."""
    return {name: tree for name, tree in trees.items() if jax.tree.leaves(tree)}


def _start_writing(folder: pathlib.Path, trees: dict[str, Any]) -> Callable[[], None]:
    """Let Orbax write trees in the background.

    Returns:
        Waits until that is done, and has to be called.
    """
    _orbax.acquire()
    try:
        response = _orbax_api().save_checkpointables_async(str(folder), {_STATE: trees})
    except BaseException:
        _orbax.release()
        raise

    def wait_until_written() -> None:
        try:
            response.result()
        finally:
            _orbax.release()

    return wait_until_written


def _load(folder: pathlib.Path, wanted: dict[str, Any], is_joined: bool) -> dict[str, Any]:
    """Load some of the trees of a step: what Orbax calls a part of the tree where they are joined."""
    ocp = _orbax_api()
    if not is_joined:
        with _orbax:
            return ocp.load_checkpointables(str(folder), wanted)
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    with _orbax, context:
        return ocp.load_checkpointables(str(folder), {_STATE: wanted})[_STATE]


def _checksums(folder: pathlib.Path) -> dict[str, list[int]]:
    """Size and CRC-32 of every file below a folder, the manifest left out."""
    return {
        path.relative_to(folder).as_posix(): _checksum(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }


def _checksum(path: pathlib.Path) -> list[int]:
    size = crc = 0
    with _reading(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]


@contextlib.contextmanager
def _reading(path: pathlib.Path) -> Iterator[BinaryIO]:
    """A regular file to read; an error names it. Opening a pipe would wait for a writer, and a device never ends."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            yield file
    except OSError as error:
        error.filename = str(path)  # reading does not say of what
        raise


def _unreadable(folder: pathlib.Path, error: OSError) -> CheckpointError:
    where = "it" if error.filename is None else f"the file {os.path.relpath(error.filename, folder)}"
    return CheckpointError(f"checkpoint {folder}: {where} cannot be read ({error.strerror})")


def _sealed(manifest: dict[str, Any]) -> bytes:
    """The manifest as JSON, on a line of its own below its checksum."""
    return _seal(json.dumps(manifest, allow_nan=False).encode())


def _seal(body: bytes) -> bytes:
    return b'{"crc32": "%08x", "manifest":\n%s\n}\n' % (zlib.crc32(body), body)


def _unsealed(data: bytes) -> dict[str, Any]:
    body = b"".join(data.split(b"\n")[1:2])
    in_format_1 = b"%08x\n%s\n" % (zlib.crc32(body), body)  # which was not JSON
    if data not in (_seal(body), in_format_1):
        raise ValueError("its checksum does not fit")
    return json.loads(body)


def _sync(path: pathlib.Path) -> None:
    """Bring a file or a folder to the disk. Orbax does so for arrays only."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
