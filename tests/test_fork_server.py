"""Forked processes: to those who start them, and to themselves, they are like others."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import environment
from tests.fork_server import Forked, run

DESCRIBED = """
import json, os, signal, sys, threading
import jax, numpy
import __main__
print(json.dumps({
    "argv": sys.argv,
    "cwd": os.getcwd(),
    "environ": dict(os.environ),
    "path": sys.path,
    "warnoptions": sys.warnoptions,
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
    "name": __name__,
    "main": __main__.__dict__ is globals(),
    "file": globals().get("__file__"),
    "parent": os.getppid(),
    "group": os.getpgrp(),
    "files": sorted(os.listdir("/proc/self/fd")),
    "threads": threading.active_count(),
    "tasks": len(os.listdir("/proc/self/task")),
    "options": {name: repr(value) for name, value in jax.config.values.items()},
    "devices": jax.device_count(),
}))
"""


def described(starter, words, **options):
    done = starter([sys.executable, *words], capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("kind", ["code", "module", "script"])
def test_is_started_like_a_fresh_interpreter(kind: str, tmp_path: Path) -> None:
    """Arguments, folder, environment, paths, warnings, signals, files, parent, and what JAX reads of variables."""
    (tmp_path / "described.py").write_text(DESCRIBED)
    words = {
        "code": ["-c", DESCRIBED, "a", "b c"],
        "module": ["-W", "error", "-m", "described", "a"],
        "script": [str(tmp_path / "described.py"), "a"],
    }[kind]
    variables = {
        **environment(compile_cache=tmp_path / "compiled"),
        "OPENBLAS_NUM_THREADS": "1",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=3",
    }
    fresh, forked = (
        described(starter, words, cwd=tmp_path, env=variables, stdin=subprocess.DEVNULL)
        for starter in (subprocess.run, run)
    )
    assert forked == fresh
    assert forked["parent"] == os.getpid()
    assert forked["devices"] == 3


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", 0),
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('why')", 1),
        ("raise ValueError('why')", 1),
        ("import os; os._exit(9)", 9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT); input()", -signal.SIGINT),
    ],
)
def test_ends_like_others(code: str, expected: int) -> None:
    """The exit code, and the text of an error."""
    done = run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == expected
    assert ("why" in done.stderr) == ("why" in code)


def test_runs_what_is_left_for_the_end() -> None:
    """Threads are waited for, functions of `atexit` are called, and all that was printed arrives."""
    code = "import atexit, threading; atexit.register(print, 'end'); threading.Timer(0.1, print, ['thread']).start()"
    assert run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "thread\nend\n"


def test_is_read_written_and_killed_like_others() -> None:
    """Pipes lead to the process that they were made for and to no other, so that each ends by itself."""
    command = [sys.executable, "-c", "while True: print(input(), flush=True)"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with Forked(command, **pipes) as first, Forked(command, **pipes) as second:
        for process, word in ((first, "one"), (second, "two")):
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{word}\n"
        first.stdin.close()  # which is the end of its input only if the second has none of it
        assert first.wait(timeout=300) == 1
        assert second.poll() is None
        second.kill()
        assert second.wait(timeout=300) == -signal.SIGKILL
        assert second.stdout.read() == ""


def test_too_long_is_an_error_and_leaves_nothing() -> None:
    """After its time a process is killed, as by `subprocess.run`."""
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(subprocess.TimeoutExpired) as error:
        run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(error.value.stdout or 0), 0)


def test_has_a_session_of_its_own_where_asked() -> None:
    """A signal to its group reaches no other process."""
    code = "import os; print(os.getpid() == os.getpgrp() == os.getsid(0))"
    for asked in (False, True):
        done = run([sys.executable, "-c", code], capture_output=True, text=True, start_new_session=asked)
        assert done.stdout.strip() == str(asked)


def test_random_numbers_differ() -> None:
    """Neither Python's nor NumPy's come from a state that others have too."""
    code = "import random, numpy; print(random.random()); print(numpy.random.random())"
    lines = [
        line
        for _ in range(2)
        for line in run([sys.executable, "-c", code], capture_output=True, text=True).stdout.splitlines()
    ]
    assert len(set(lines)) == 4


def test_server_ends_with_who_asked() -> None:
    """Also if that is killed, with all that it would have told the server to do."""
    code = "\n".join(
        [
            "import os, signal, sys",
            "from tests.fork_server import Forked, fork_server",
            "Forked([sys.executable, '-c', ''], stdout=-3).wait()",
            "server = open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read()",
            "print(server, flush=True)",
            "os.kill(os.getpid(), signal.SIGKILL)",
        ]
    )
    # Its output is also the server's standard error, and has an end only when the server has one.
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        env=environment(),
    )
    assert done.returncode == -signal.SIGKILL
    assert len(done.stdout.split()) == 1
