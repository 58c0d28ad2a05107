"""Checkpoints on a disk that fails: what cannot be read is named, and the one before it is used."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from trackside.errors import CheckpointError
from trackside.trainer.checkpoint_store import MANIFEST, CheckpointStore
from trackside.trainer.checkpoints import NO_STEP, choose_step, stages_of_steps

ARRAY = "state/_METADATA"


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Two steps."""
    store = CheckpointStore(tmp_path / "checkpoints")
    for step in (1, 2):
        store.save(step, {"params": {"a": jnp.ones(2)}}, {"metrics": {"loss": 1.0}, "stages": {}})
    store.wait()
    return store


def choose(store: CheckpointStore, caplog: pytest.LogCaptureFixture) -> str:
    """What is said when the newest step is passed by; the one before it is chosen, and no other choice fails."""
    caplog.clear()
    assert choose_step(store, NO_STEP, load_best=False) == 1
    assert 1 in stages_of_steps(store)
    with pytest.raises(CheckpointError):
        store.verify(2)
    return caplog.text


@pytest.mark.parametrize("name", [MANIFEST, ARRAY])
def test_folder_in_place_of_a_file(store: CheckpointStore, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that has a file's name is no file."""
    path = store.root / "2" / name
    path.unlink()
    path.mkdir()
    assert f"the file {name}" in choose(store, caplog)


@pytest.mark.parametrize("name", [MANIFEST, ARRAY])
def test_pipe_in_place_of_a_file(store: CheckpointStore, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A pipe is not waited for."""
    path = store.root / "2" / name
    path.unlink()
    os.mkfifo(path)
    assert f"the file {name}" in choose(store, caplog)


@pytest.mark.parametrize("name", [MANIFEST, ARRAY])
def test_device_in_place_of_a_file(store: CheckpointStore, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A device that never ends is not read."""
    path = store.root / "2" / name
    path.unlink()
    path.symlink_to("/dev/zero")
    assert f"the file {name}" in choose(store, caplog)


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failing = -1;

static int is_meant(const char *path) {
    const char *meant = getenv("FAULT_PATH");
    return meant && *meant && path && strstr(path, meant);
}

#define OPEN(name, parameters, arguments)                                   \
    int name parameters {                                                   \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
        int (*real) parameters = dlsym(RTLD_NEXT, #name);                   \
        if (is_meant(path) && getenv("FAULT_OPEN")) { errno = atoi(getenv("FAULT_OPEN")); return -1; } \
        int fd = real arguments;                                            \
        if (is_meant(path) && getenv("FAULT_READ")) failing = fd;           \
        return fd;                                                          \
    }

OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))
OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))

int close(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "close");
    if (fd == failing) failing = -1;
    return real(fd);
}

ssize_t read(int fd, void *buffer, size_t size) {
    ssize_t (*real)(int, void *, size_t) = dlsym(RTLD_NEXT, "read");
    if (fd == failing) { errno = atoi(getenv("FAULT_READ")); return -1; }
    return real(fd, buffer, size);
}
"""

CHILD = """
import logging, os, sys
from trackside.errors import CheckpointError
from trackside.trainer.checkpoint_store import CheckpointStore
from trackside.trainer.checkpoints import NO_STEP, choose_step
logging.basicConfig(stream=sys.stdout, format="%(message)s")
store = CheckpointStore(sys.argv[1])
for fault in sys.argv[2:]:
    path, how, number = fault.split(":")
    os.environ.update({"FAULT_PATH": path, how: number})
    print("chosen", choose_step(store, NO_STEP, load_best=False), flush=True)
    os.environ.pop(how)
os.environ["FAULT_PATH"] = ""
print("chosen", choose_step(store, NO_STEP, load_best=False), flush=True)
"""


@pytest.mark.slow
def test_disk_that_refuses_or_fails(store: CheckpointStore, tmp_path: Path) -> None:
    """EIO and EACCES, on opening or on reading, of the manifest or an array: the file is named, and step 1 chosen."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("a C compiler makes the faults, for Linux")
    (tmp_path / "shim.c").write_text(SHIM)
    library = tmp_path / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "shim.c", "-ldl"], check=True)
    faults = [
        (name, how, number)
        for name in (MANIFEST, ARRAY)
        for how, number in (("FAULT_OPEN", errno.EACCES), ("FAULT_OPEN", errno.EIO), ("FAULT_READ", errno.EIO))
    ]
    words = [f"checkpoints/2/{name}:{how}:{number}" for name, how, number in faults]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(store.root), *words],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "LD_PRELOAD": str(library)},
    )
    assert done.returncode == 0, done.stderr
    expected: list[str] = []
    for name, _, number in faults:
        cause = f"the file {name} cannot be read ({os.strerror(number)})"
        expected += [f"skipping a checkpoint: checkpoint {store.root / '2'}: {cause}", "chosen 1"]
    assert done.stdout.splitlines() == [*expected, "chosen 2"]
