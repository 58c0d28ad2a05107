"""A run that is opened: what its rows say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.findings.made_up import make_ledger
from tests.runs.written import WrittenRun, finished_run
from trackside.errors import ConfigError, TracksideError
from trackside.findings import Finding
from trackside.runs import RunError, open_run

FINDING = Finding("input_bound", "severe", "62 % of wall is data wait", {"data_wait_share": 0.62}, "raise workers")


def test_finished_run_tells_how_it_ended(tmp_path: Path) -> None:
    """Status, step, epoch and times are those of its rows."""
    finished_run(tmp_path / "mine")
    run = open_run(tmp_path / "mine")
    assert (run.name, run.status, run.is_finished, run.step, run.epoch) == ("mine", "success", True, 100, 1)
    assert run.started_at == 1000.0
    assert run.ended_at == 1018.0
    assert run.problems == []
    assert run.process_indices == [0]
    assert run.hosts is None


def test_an_event_file_stands_for_its_run(tmp_path: Path) -> None:
    """The path may be that of an event file."""
    written = finished_run(tmp_path)
    assert open_run(written.path).path == tmp_path


@pytest.mark.parametrize("name", ["missing", "empty", "events-00000.jsonl", "x" * 300])
def test_no_run(tmp_path: Path, name: str) -> None:
    """Where there is no run, the error names the path and what to give."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=rf"path: there is no run at '.*{name}'.*; give the folder") as caught:
        open_run(tmp_path / name)
    assert isinstance(caught.value, TracksideError)


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_folder_of_runs_is_no_run(tmp_path: Path, below: str) -> None:
    """The error says so, and names a few."""
    for name in "abcdef":
        (tmp_path / below / name).mkdir(parents=True)
        finished_run(tmp_path / below / name)
    with pytest.raises(RunError, match=r"is no run, but holds some; open one of them: .*/a, .*/d and others$"):
        open_run(tmp_path)


def test_what_is_no_path() -> None:
    """A number, or a text that no file can be called."""
    with pytest.raises(ConfigError, match=r"path: expected str \| PathLike.*, got 3"):
        open_run(3)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="path: there is no run at"):
        open_run("a\0b")


def test_configs_and_environments_add_up(tmp_path: Path) -> None:
    """Rows `config` and `environment` are merged by their keys."""
    finished_run(tmp_path)
    run = open_run(tmp_path)
    assert run.config == {"trainer": {"seed": 7}, "model": {"width": 3}}
    assert run.environment == {"hostname": "node-0", "process_index": 0, "devices": ["cpu:0"], "backend": "cpu"}


def test_config_file_serves_where_the_events_have_none(tmp_path: Path) -> None:
    """Without a row `config`, the configuration is that of config.json."""
    WrittenRun(tmp_path).with_config_file()
    assert open_run(tmp_path).config == {"trainer": {"seed": 7}}


def test_ledger_sums_over_legs(tmp_path: Path) -> None:
    """The last totals of each leg add up."""
    run = WrittenRun(tmp_path)
    run.leg(1).ledger(5, 5, data_wait=1.0).ledger(10, 10, data_wait=2.0).leg(2, step=8).ledger(20, 12, data_wait=4.0)
    ledger = open_run(tmp_path).ledger
    assert ledger is not None
    assert (ledger.wall_s, ledger.parts, ledger.num_steps) == (6.0, {"data_wait": 6.0}, 22)


def test_no_ledger(tmp_path: Path) -> None:
    """A run that wrote no totals has none, and no goodput."""
    WrittenRun(tmp_path).leg()
    assert open_run(tmp_path).ledger is None
    assert open_run(tmp_path).goodput is None


def test_legs(tmp_path: Path) -> None:
    """A leg without an end is dead since its last row, one with an end has its figures, the goodput is the last."""
    written = WrittenRun(tmp_path).leg(1).metrics(30, loss=1.0).write("format", version=1).write("environment", pid=2)
    written.leg(2, step=20).end("interrupted", step=70, number=2)
    first, second = open_run(tmp_path).legs
    assert (first.number, first.first_step, first.last_step, first.status) == (1, 0, 30, "dead")
    assert (first.started_at, first.ended_at, first.train_time_s, first.goodput) == (1001.0, 1002.0, None, None)
    assert (second.number, second.first_step, second.last_step, second.status) == (2, 20, 70, "interrupted")
    assert (second.started_at, second.ended_at, second.train_time_s, second.goodput) == (1005.0, 1007.0, 12.0, 0.5)
    assert open_run(tmp_path).goodput == 0.5


@pytest.mark.parametrize(
    ("last_step", "expected"),
    [(0, 4.0), (10, None)],
    ids=["the leg before made no step", "an earlier version made the first step"],
)
def test_time_to_first_step_is_that_of_the_first_step(tmp_path: Path, last_step: int, expected: float | None) -> None:
    """It belongs to the leg that made the run's first step; each leg has its own."""
    run = WrittenRun(tmp_path).leg().end("error", step=last_step).leg(2, step=last_step)
    run.write("first_step", step=last_step + 1, wall_s=4.0, parts={"compile": 3.0, "setup": 1.0}).end(number=2)
    read = open_run(tmp_path)
    assert (None if read.time_to_first_step is None else read.time_to_first_step.wall_s) == expected
    assert [None if leg.time_to_first_step is None else leg.time_to_first_step.wall_s for leg in read.legs] == [
        None,
        4.0,
    ]


def test_goal(tmp_path: Path) -> None:
    """The goal is what the last leg set itself; None where it did not say."""
    written = WrittenRun(tmp_path).leg(1)
    assert open_run(tmp_path).goal is None
    written.leg(2, goal=400)
    assert open_run(tmp_path).goal == 400


def test_rows_by_kind(tmp_path: Path) -> None:
    """Compiles, memory, checkpoints and leaks are the rows as they were written; timers are the last ones."""
    written = WrittenRun(tmp_path)
    written.write("compile", function="train_step", step=1).write("memory", step=5, host={"rss_bytes": 9})
    written.write("checkpoint", step=7, path="x").write("memory_leak", step=9, name="host")
    written.write("profiling", step=1, operations={"a": {"count": 1}})
    written.write("profiling", step=2, operations={"a": {"count": 2}})
    run = open_run(tmp_path)
    assert run.compiles == [{"kind": "compile", "t": 1001.0, "function": "train_step", "step": 1}]
    assert [row["host"] for row in run.memory] == [{"rss_bytes": 9}]
    assert [row["step"] for row in run.checkpoints] == [7]
    assert [row["name"] for row in run.leaks] == ["host"]
    assert run.timers == {"a": {"count": 2}}


def test_events_in_order(tmp_path: Path) -> None:
    """`events` gives the rows of the kinds asked for, metrics included, and all without a kind."""
    WrittenRun(tmp_path).leg().metrics(1, loss=float("nan")).write("checkpoint", step=1, path="x")
    run = open_run(tmp_path)
    assert [row["kind"] for row in run.events()] == ["format", "leg", "metrics", "checkpoint"]
    assert [row["kind"] for row in run.events("checkpoint", "leg")] == ["leg", "checkpoint"]
    assert [row["step"] for row in run.events("metrics")] == [1]


def test_findings_of_a_run_without_a_ledger_are_those_that_it_reported(tmp_path: Path) -> None:
    """Where no row has a ledger to judge, the last leg's own verdicts are shown, and not those of legs before."""
    written = WrittenRun(tmp_path).leg(1).write("finding", **FINDING.to_dict()).end("interrupted")
    assert open_run(tmp_path).findings == [FINDING]
    written.leg(2, step=100).end("success")
    assert open_run(tmp_path).findings == []


def test_verdicts_come_from_the_ledger_and_not_from_what_a_leg_reported(tmp_path: Path) -> None:
    """A finished run is judged by its rows over all legs: what its last leg said of itself alone is not repeated."""
    WrittenRun(tmp_path).leg().ledger(100, 100, device_wait=9.0).write("finding", **FINDING.to_dict()).end()
    assert open_run(tmp_path).findings == []


def test_findings_of_a_dead_run_are_judged_here(tmp_path: Path) -> None:
    """A run that reported nothing is judged by its rows."""
    written = WrittenRun(tmp_path).leg()
    for step in range(10, 1001, 10):
        written.metrics(step, step_time=0.1)
    totals = make_ledger({"data_wait": 80.0}, busy_s=30.0, idle={"data_wait": 55.0})
    written.write("ledger", step=1000, **totals.to_dict())
    assert open_run(tmp_path).status == "dead"
    assert [finding.id for finding in open_run(tmp_path).findings] == ["input_bound"]


def test_epochs_of_a_dead_run_are_judged(tmp_path: Path) -> None:
    """What came after each epoch belongs to that epoch."""
    written = WrittenRun(tmp_path).leg()
    for epoch in range(1, 6):
        written.metrics(100 * epoch, "train_epoch", epoch, epoch_time=1.0)
        written.write("between_epochs", epoch=epoch, parts={"other": 2.0})
    written.write("ledger", step=500, **make_ledger({}).to_dict())
    assert "idle_after_epoch" in [finding.id for finding in open_run(tmp_path).findings]


@pytest.mark.parametrize("is_copied", [False, True])
def test_captures_are_found_where_the_run_lies_now(tmp_path: Path, is_copied: bool) -> None:
    """After a move the path leads into the new folder, also if the old one is still there; elsewhere it stays."""
    inside = Path("tensorboard") / "plugins" / "profile" / "step_00000061"
    old, outside = tmp_path / "old", tmp_path / "elsewhere" / "step_00000001"
    outside.mkdir(parents=True)
    written = WrittenRun(old)
    for path in (old / inside, outside):
        written.write("capture", path=str(path), first_step=1, last_step=2, report=None)
    (old / inside).mkdir(parents=True)
    if is_copied:
        shutil.copytree(old, tmp_path / "new")
    else:
        old.rename(tmp_path / "new")
    assert [row["path"] for row in open_run(tmp_path / "new").captures] == [
        str(tmp_path / "new" / inside),
        str(outside),
    ]


def test_notebook_escapes_what_comes_from_the_run(tmp_path: Path) -> None:
    """Names and text of the run stay text."""
    hostile = "<img src=x onerror=alert(1)>"
    written = WrittenRun(tmp_path / hostile).leg().ledger(1, 1, **{f"callback/{hostile}": 1.0})
    written.write("finding", **{**FINDING.to_dict(), "title": hostile}).metrics(1, loss=1.0).end(hostile)
    written.events.write_metrics({hostile: 1.0}, 2, 1, "train")
    run = open_run(tmp_path / hostile)
    for page in (run._repr_html_(), run.metrics["train"]._repr_html_()):
        assert "<img" not in page
        assert "&lt;img" in page


def test_nothing_of_jax_is_imported() -> None:
    """Runs are read without the training code's packages."""
    code = "import sys, trackside.runs; print(sorted({'jax', 'flax', 'optax', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
