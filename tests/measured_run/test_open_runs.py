"""Whatever ends a process or runs a cell again, its runs are closed truthfully."""

import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

import trackside
from tests import fork_server
from tests.measured_run.own_loops import open_run_of
from trackside.clock import ManualClock
from trackside.measured_run import open_runs

SCRIPT = """
import os, signal, sys
import trackside
run = trackside.run(sys.argv[1])
step = run.step(lambda: 1.0)
for index in range(50):
    run.log(loss=step())
{end}
"""
ENDS = {
    "error": "raise ValueError('broken')",
    "interrupted": "os.kill(os.getpid(), signal.SIGTERM)",
    "dead": "run._look_up(); os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.slow
def test_the_end_of_a_process_is_a_status(tmp_path: Path) -> None:
    """A run that nobody closed says how its process ended, unless that was killed."""
    processes = {
        status: fork_server.Forked(
            [sys.executable, "-c", SCRIPT.format(end=end), str(tmp_path / status)], stderr=subprocess.DEVNULL
        )
        for status, end in ENDS.items()
    }
    codes = {status: process.wait(timeout=300) for status, process in processes.items()}
    assert codes == {"error": 1, "interrupted": 143, "dead": -9}
    for status in ENDS:
        read = trackside.open_run(tmp_path / status)
        assert read.status == status
        assert read.metrics["train"]["loss"].size >= 32


def test_sigterm_leaves_the_with_block(tmp_path: Path) -> None:
    """SIGTERM ends the program as `sys.exit` does, and the handler is gone with the run."""
    with pytest.raises(SystemExit), trackside.run(tmp_path / "run"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert trackside.open_run(tmp_path / "run").status == "interrupted"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_sigterm_is_obeyed_where_python_ignores_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in a finalizer is lost; the next look between two steps ends the program all the same."""

    def loop() -> None:
        with trackside.run(tmp_path / "run") as run:
            monkeypatch.setattr(open_runs, "_was_terminated", True)  # as the handler leaves it
            run.step(lambda: None)()

    with pytest.raises(SystemExit):
        loop()
    assert trackside.open_run(tmp_path / "run").status == "interrupted"


def test_a_handler_of_the_program_stays(tmp_path: Path) -> None:
    """A program that handles SIGTERM in its own way is left to do so."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with trackside.run(None):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_worker_closes_nothing(tmp_path: Path) -> None:
    """A process that was forked from a loop's does not end its run."""
    with trackside.run(tmp_path / "run") as run:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            run.close("error")
        run.log(loss=1.0)
    assert trackside.open_run(tmp_path / "run").status == "success"


class Cells:
    """The events of a notebook's shell."""

    def __init__(self) -> None:
        self.functions: dict[str, list] = {"pre_run_cell": [], "post_run_cell": []}

    def register(self, name: str, function: object) -> None:
        self.functions[name].append(function)

    def unregister(self, name: str, function: object) -> None:
        self.functions[name].remove(function)

    def trigger(self, name: str) -> None:
        for function in list(self.functions[name]):
            function(None)


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Cells:
    """A notebook."""
    events = Cells()
    monkeypatch.setattr(open_runs, "_shell", lambda: types.SimpleNamespace(events=events))
    return events


def test_a_cell_may_be_run_again(cells: Cells, tmp_path: Path) -> None:
    """The run that a cell has left open is closed each time the cell is run again, and the next one goes beside it."""
    names = ["run", "run-2", "run-3"]
    runs = []
    for _ in names:
        runs.append(trackside.run(tmp_path / "run"))
        runs[-1].log(loss=1.0)
    assert [run.path for run in runs] == [tmp_path / name for name in names]
    assert [trackside.open_run(tmp_path / name).status for name in names] == ["success", "success", "running"]
    runs[-1].close()


def test_the_time_between_cells_is_nobodys(cells: Cells) -> None:
    """What passes while no cell runs is outside of the ledger."""
    clock = ManualClock(start=1.0)
    run = open_run_of(clock=clock)
    step = run.step(lambda: clock.advance(1.0))
    for _ in range(2):
        step()
        cells.trigger("post_run_cell")
        clock.advance(100.0)
        cells.trigger("pre_run_cell")
    step()
    cells.trigger("post_run_cell")
    clock.advance(100.0)
    run.close()
    totals = run.ledger_totals
    assert (totals.wall_s, totals.outside_s) == (pytest.approx(3.0), pytest.approx(300.0))
    assert cells.functions == {"pre_run_cell": [], "post_run_cell": []}
