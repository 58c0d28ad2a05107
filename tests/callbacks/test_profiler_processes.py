"""Profiles of several processes, one each under one session name, and the run that they have written together."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fork_server
from tests.children import environment
from trackside.runs import open_run
from trackside.trace import analyse_trace

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have left that trained together."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = environment()
    variables.pop("XLA_FLAGS", None)  # of those who set eight devices by it
    processes = [
        starter(
            [sys.executable, "-m", "tests.callbacks.process_script", str(index), str(port), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )
        for index, starter in enumerate((subprocess.Popen, fork_server.Forked))
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs[0][1][-2000:] + outputs[1][1][-2000:]
    finals = {out.split("FINAL")[1] for out, _ in outputs}
    assert len(finals) == 1  # they have trained one model
    return folder


def sessions(directory: Path) -> dict[str, int]:
    """The number of traces by session."""
    profiles = directory / "plugins" / "profile"
    return {session.name: len(list(session.glob("*.xplane.pb"))) for session in profiles.iterdir()}


def test_window_has_a_trace_of_each_process(folder: Path) -> None:
    """A window of steps is one session with a file per process, and both hold the same steps."""
    assert sessions(folder / "window") == {"step_00000010": 2}
    report = analyse_trace(folder / "window", program="jit_train_call")
    assert sorted(marker.step for marker in report.markers) == [10, 10, 11, 11, 12, 12]
    assert len(report.collectives) > 0


def test_processes_agree_on_when_the_clock_says_so(folder: Path) -> None:
    """Captures by minutes start at the same steps in both processes, which look at the clock together."""
    assert sessions(folder / "run" / "tensorboard") == {"step_00000021": 2, "step_00000065": 2}


def test_two_processes_are_one_run(folder: Path) -> None:
    """Both are rows of the table of hosts, with the same steps, and neither is silent."""
    run = open_run(folder / "run")
    assert (run.status, run.process_indices, run.problems) == ("success", [0, 1], [])
    hosts = run.hosts
    assert hosts is not None
    assert [(host.process_index, host.hostname, host.num_steps) for host in hosts] == [
        (index, socket.gethostname(), 80) for index in (0, 1)
    ]
    assert all(host.own_s_per_step > 0 for host in hosts)
    assert hosts.silent == []
