"""Two processes that train together: started with a scenario, and read when they are done."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import fork_server
from tests.children import environment
from tests.compiler import quick_flags

Found = dict[str, Any]


def start(scenario: str, folder: Path, num_devices: int = 1) -> list[subprocess.Popen[str]]:
    """Two processes with one scenario of `process_script.py`.

    The first is a fresh interpreter, so that nothing may depend on hashes of strings, which differ between the two.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = environment(compile_cache=folder / "compiled")
    variables["XLA_FLAGS"] = quick_flags("")  # without those of a user who sets eight devices by it
    command = [sys.executable, "-m", "tests.trainer.process_script", scenario, str(folder)]
    return [
        starter(
            [*command, str(index), str(port), str(num_devices)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )
        for index, starter in enumerate((subprocess.Popen, fork_server.Forked))
    ]


def finish(processes: list[subprocess.Popen[str]], timeout_s: float = 400) -> tuple[list[str], list[str], list[int]]:
    """What each has printed, its errors, and its exit code. None outlives the test."""
    try:
        outputs = [process.communicate(timeout=timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [out for out, _ in outputs], [errors for _, errors in outputs], [one.returncode for one in processes]


def results(processes: list[subprocess.Popen[str]]) -> list[Found]:
    outputs, errors, codes = finish(processes)
    assert not any(codes), "\n".join(text[-3000:] for text in errors)
    return [json.loads(output.splitlines()[-1]) for output in outputs]
