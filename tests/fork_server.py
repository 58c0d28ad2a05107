"""Processes for tests that start in no time: forked from one that has imported what takes others a second to import.

`Forked` is a `subprocess.Popen` for commands of this Python, and `run` is `subprocess.run` with it: `-c CODE`,
`-m MODULE` or a script, with arguments. Its process has its own environment, folder and files, ends as others end, and
can be killed as they can. Start a fresh interpreter where imports are what a test is about, or where two processes must
have different seeds for the hashes of strings: those of one fork server have the same.
"""

import atexit
import ctypes
import functools
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MAX_REQUEST_BYTES = 1 << 20
PR_SET_CHILD_SUBREAPER = 36
SERVE = """
from tests.fork_server import serve
if (become := serve()) is not None:
    become()  # at the bottom of the stack, where an exception ends the process as in any other
"""
# Not wandb, tensorboardX or torch, which few need. None of these starts a thread, which a fork would leave behind.
PRELOADED = (
    "equinox",
    "flax.linen",
    "flax.nnx",
    "grain",
    "jax.experimental.multihost_utils",
    "optax",
    "orbax.checkpoint",
    "trackside.callbacks",
    "trackside.cli",
    "trackside.trainer",
)


class Forked(subprocess.Popen):
    """A process of this Python, started as by `subprocess.Popen`. Its command begins with `sys.executable`."""

    def _execute_child(self, args: Any, *options: Any) -> None:
        given = dict(zip(OPTIONS, options, strict=True))
        assert args[0] == sys.executable, f"expected a command of {sys.executable}, got {args[0]}"
        # What cannot be handed over must not be asked for.
        assert not any(given[name] for name in ("executable", "preexec_fn", "pass_fds", "shell", "gids"))
        ends = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        request = {
            "arguments": [os.fspath(word) for word in args[1:]],
            "folder": os.fspath(given["cwd"] or os.getcwd()),
            "environment": dict(os.environ if given["env"] is None else given["env"]),
            "new_session": given["start_new_session"],
        }
        files = [inherited if end == -1 else end for inherited, end in enumerate(ends)]
        server = fork_server()
        with adopting_orphans():
            socket.send_fds(server, [json.dumps(request).encode()], files)
            self.pid = int(server.recv(64))
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in PIPES))  # type: ignore[attr-defined]


PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
OPTIONS = (
    *("executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags", "shell"),
    *PIPES,
    *("restore_signals", "gid", "gids", "uid", "umask", "start_new_session", "process_group"),
)


def run(
    command: list[Any],
    *,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """What `subprocess.run` does, with a forked process."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Forked(command, **options) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, errors)
    if check:
        done.check_returncode()
    return done


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Become the parent of a process whose own parent ends, so as to wait for it, and to get its exit code."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@functools.cache
def fork_server() -> socket.socket:
    """The connection to this process's fork server, which ends when nobody holds the connection any more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    without_jax = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # OpenBLAS would start threads.
            env={**without_jax, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        )

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


# --- in the server and in what it forks -----------------------------------------------------------------------------


def serve() -> Any:
    """Fork at each request. Returns in each forked process, with what it has to do, and when nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who ask
    before = dict(os.environ)
    for name in PRELOADED:
        __import__(name)
    by_imports = {name: value for name, value in os.environ.items() if name not in before}
    gc.collect()
    gc.freeze()
    connection = socket.socket(fileno=int(sys.argv[1]))
    while True:
        content, files, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
        if not content:
            return None
        pid = forked_twice()
        if pid == 0:
            connection.close()
            request = json.loads(content)
            request["environment"] = by_imports | request["environment"]
            return functools.partial(become, request, files)
        for file in files:
            os.close(file)
        connection.send(str(pid).encode())


def forked_twice() -> int:
    """The id of a process whose parent is gone, and that has been adopted; 0 in that process."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        pid = os.fork()
        if pid:
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.close(reading)
        os.close(writing)
        while os.getppid() == between:
            time.sleep(0.001)
        return 0
    os.close(writing)
    os.waitpid(between, 0)
    pid = int(os.read(reading, 64))
    os.close(reading)
    return pid


def become(request: Mapping[str, Any], files: list[int]) -> None:
    """Be the process that was asked for, as if it had just been started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if request["new_session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    own_path = [str(ROOT), *os.environ["PYTHONPATH"].split(os.pathsep)]
    installed = [entry for entry in sys.path[1:] if entry not in own_path]
    os.environ.clear()
    os.environ.update(request["environment"])
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    read_jax_variables()
    sys.modules["numpy"].random.seed()  # others were forked with the same state
    words = list(request["arguments"])
    while words[0] == "-W":
        sys.warnoptions.append(words[1])
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        del words[:2]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-m":
        sys.argv, sys.path = words[1:], [os.getcwd(), *given, *installed]
        runpy._run_module_as_main(words[1])
    elif words[0] == "-c":
        sys.argv, sys.path = ["-c", *words[2:]], ["", *given, *installed]
        exec(compile(words[1], "<string>", "exec"), vars(main))
    else:
        sys.argv, sys.path = words, [str(Path(words[0]).absolute().parent), *given, *installed]
        main.__file__ = words[0]
        exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), vars(main))


def read_jax_variables() -> None:
    """JAX reads most of its variables when it is imported; those of a forked process are read here."""
    import jax

    parse = {bool: lambda text: text.lower() in ("1", "true", "t", "yes", "y", "on"), int: int, float: float}
    for option, (kind, _, _) in jax.config.meta.items():
        if (text := os.environ.get(option.upper())) is not None:
            jax.config.update(option, parse.get(kind, str)(text))
