"""`trackside ls`, and what it sees of a run at a glance."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from trackside import cli
from trackside.cli import run_glance
from trackside.cli.run_glance import glance_at
from trackside.events import EventWriter
from trackside.measured_run.run_lock import RunLock
from trackside.report import summarise_run
from trackside.run_layout import event_file_name
from trackside.runs import open_run


def write_run(path: Path, losses: list[float], status: str | None = "success") -> Path:
    """A run with a validation after each ten steps."""
    path.mkdir(parents=True)
    writer = EventWriter(path / event_file_name(0))
    writer.write("leg", leg=1, step=0, epoch=0)
    for index, loss in enumerate(losses, start=1):
        for step in (10 * index - 5, 10 * index):
            writer.write_metrics({"loss_mean": loss, "step_time": 0.02}, step=step, epoch=index, mode="train")
        writer.write_metrics({"loss": loss}, step=10 * index, epoch=index, mode="val")
    if status:
        writer.write("status", status=status, step=10 * len(losses), epoch=len(losses))
    writer.close()
    return path


def test_runs_are_listed_newest_first(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A list has name, status, steps, speed and best metric of each run, in 80 columns, the newest first."""
    shutil.copytree(trained_run, tmp_path / "old")
    write_run(tmp_path / "group" / "new", [0.5, 0.25, 0.3])
    assert cli.run(["ls", str(tmp_path)]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "status", "steps", "steps/s", "best", "began"]
    assert first.split()[:6] == ["group/new", "success", "30", "50", "val_loss", "0.25"]
    assert second.split()[:3] == ["old", "success", "93"]
    assert max(map(len, (head, first, second))) <= 80


def test_list_as_json(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """`--json` prints the list for a script."""
    write_run(tmp_path / "a", [0.5])
    assert cli.run(["ls", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["format"] == "trackside.runs/1"
    assert listed["runs"][0]["path"] == str(tmp_path / "a")
    assert listed["runs"][0]["best"]["value"] == 0.5


def test_directory_without_runs_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """An empty list is not an error, and the output says so."""
    assert cli.run(["ls", str(tmp_path)]) == 0
    assert "no runs below" in capsys.readouterr().out


def test_missing_directory_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A directory that does not exist is named."""
    assert cli.run(["ls", str(tmp_path / "nope")]) == 2
    assert "nope: no such directory" in capsys.readouterr().err


def test_glance_agrees_with_the_reader(trained_run: Path) -> None:
    """A few rows give the same result as all of them: status, step, epoch, best metric and times."""
    glance, summary = glance_at(trained_run), summarise_run(open_run(trained_run))
    assert (glance.status, glance.step, glance.epoch) == (summary.status, summary.step, summary.epoch)
    assert glance.best == summary.best
    assert glance.is_best_of_all
    assert (glance.started_at, glance.ended_at) == (summary.started_at, summary.ended_at)
    assert summary.step_time is not None
    assert glance.steps_per_second == 1 / summary.step_time.p50_s


@pytest.mark.parametrize(("is_held", "status"), [(True, "running"), (False, "dead")])
def test_run_without_a_last_word(is_held: bool, status: str, tmp_path: Path) -> None:
    """A run that did not say how it ended is running while a process holds its lock, and dead otherwise."""
    path = write_run(tmp_path / "a", [0.5], status=None)
    with RunLock(path if is_held else None):
        glance = glance_at(path)
    assert glance.status == status


def test_early_stop_is_a_status_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A run that a callback ended before its goal is listed as such, with the reason for scripts."""
    path = tmp_path / "a"
    path.mkdir()
    writer = EventWriter(path / event_file_name(0))
    writer.write("leg", leg=1, step=0, epoch=0, goal=100)
    writer.write("stop", reason="early stopping: val_loss did not improve", step=28)
    writer.write("status", status="success", step=28, epoch=2)
    writer.close()
    assert cli.run(["ls", str(tmp_path)]) == 0
    assert "a           stopped early         28" in capsys.readouterr().out
    assert cli.run(["ls", str(tmp_path), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["runs"]
    assert (listed["status"], listed["stop_reason"]) == ("stopped early", "val_loss did not improve")


def test_run_that_goes_on_is_not_finished(tmp_path: Path) -> None:
    """A leg after the last status row counts: the earlier leg's success is history."""
    path = write_run(tmp_path / "a", [0.5])
    writer = EventWriter(path / event_file_name(0))
    writer.write("leg", leg=2, step=10, epoch=1)
    writer.close()
    glance = glance_at(path)
    assert glance.status == "dead"


def test_monitored_metric_is_the_best_one(tmp_path: Path) -> None:
    """What a checkpoint monitors is what is listed, the highest where that is best."""
    path = tmp_path / "a"
    path.mkdir()
    writer = EventWriter(path / event_file_name(0))
    callback = {"__class__": "CheckpointConfig", "monitor": "val_accuracy", "mode": "max"}
    writer.write("config", config={"trainer": {"callbacks": [callback]}})
    for step, accuracy in ((1, 0.5), (2, 0.9), (3, 0.7)):
        writer.write_metrics({"loss": 1.0, "accuracy": accuracy}, step=step, epoch=1, mode="val")
    writer.close()
    glance = glance_at(path)
    assert glance.best is not None
    assert (glance.best.label, glance.best.value, glance.best.step) == ("val_accuracy", 0.9, 2)


def test_torn_and_empty_files_do_not_stop_the_list(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A torn last line is skipped, and an empty file is a dead run without steps."""
    torn = write_run(tmp_path / "torn", [0.5])
    with (torn / event_file_name(0)).open("a") as file:
        file.write('{"kind":"status","t":1')
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / event_file_name(0)).touch()
    assert cli.run(["ls", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [["empty", "dead", "0"], ["torn", "success", "10"]]


ODD_ROWS = (
    '{"kind":"leg","step":"many","goal":[]}',
    '{"kind":"status","status":"success","step":"x"}',
    '{"kind":"metrics","t":{},"step":[],"epoch":1,"mode":"val","values":{"loss":{"a":[1]}}}',
    '{"kind":"metrics","t":1.0,"step":1,"epoch":1,"mode":"val","values":[1,2]}',
    '{"kind":"config","config":[1]}',
    '{"kind":"config","config":{"trainer":{"callbacks":[{"monitor":[1]}]}}}',
    '{"kind":"format","t":"yesterday"}',
    '{"kind":' + "[" * 100_000,
    "[]",
)


def test_one_bad_run_does_not_break_the_list(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Odd rows, a pipe or a folder instead of a file, a link to nowhere: the good run is still listed, and odd ones."""
    for number, row in enumerate(ODD_ROWS):
        path = write_run(tmp_path / f"odd{number}", [0.5])
        with (path / event_file_name(0)).open("a") as file:
            file.write(f"{row}\n")
        (tmp_path / f"only{number}").mkdir()
        (tmp_path / f"only{number}" / event_file_name(0)).write_text(f"{row}\n")
    for name in ("pipe", "folder", "link"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / event_file_name(0))
    (tmp_path / "folder" / event_file_name(0)).mkdir()
    (tmp_path / "link" / event_file_name(0)).symlink_to(tmp_path / "nowhere")
    write_run(tmp_path / "good", [0.5, 0.25])
    assert cli.run(["ls", str(tmp_path)]) == 0
    listed = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[1:]}
    assert listed["good"][:2] == ["success", "20"]
    assert {f"odd{number}" for number in range(len(ODD_ROWS))} <= set(listed)


def test_metric_is_found_among_rows_of_callbacks(tmp_path: Path) -> None:
    """The last row of training may be one of a callback, without a loss: the loss is found in the rows before."""
    path = tmp_path / "a"
    path.mkdir()
    writer = EventWriter(path / event_file_name(0))
    for step, loss in ((10, 0.5), (20, 0.25), (30, float("nan"))):
        writer.write_metrics({"loss_mean": loss, "step_time": 0.5}, step, 1, "train")
        writer.write_metrics({"learning_rate": 0.1}, step, 1, "train")
    writer.close()
    glance = glance_at(path)
    assert glance.best is not None
    assert (glance.best.label, glance.best.value, glance.best.step) == ("train_loss", 0.25, 20)
    assert glance.steps_per_second == 2.0


def test_large_file_is_read_at_its_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large file the beginning and the end are looked at, and the best metric says so."""
    monkeypatch.setattr("trackside.events.NAMES_EVERY_BYTES", 2000)
    path = write_run(tmp_path / "a", np.linspace(1, 0.5, 400).tolist())
    size = os.path.getsize(path / event_file_name(0))
    monkeypatch.setattr(run_glance, "MAX_READ_BYTES", size // 2)
    monkeypatch.setattr(run_glance, "_END_BYTES", size // 8)
    glance = glance_at(path)
    assert (glance.status, glance.step) == ("success", 4000)
    assert not glance.is_best_of_all
    assert glance.best is not None
    assert glance.best.value == 0.5


def test_directory_is_named_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brackets and colons in a path are no markup."""
    monkeypatch.chdir(tmp_path)
    Path("[bold]:smile:").mkdir()
    assert cli.run(["ls", "[bold]:smile:"]) == 0
    assert "no runs below [bold]:smile:" in capsys.readouterr().out


def test_step_of_a_resumed_run_is_the_last(tmp_path: Path) -> None:
    """A run that resumed from a step before its highest is where its last row says, as the reader has it."""
    path = write_run(tmp_path / "a", [0.5, 0.4, 0.3], status="interrupted")
    writer = EventWriter(path / event_file_name(0))
    writer.write("leg", leg=2, step=10, epoch=1)
    writer.write_metrics({"loss_mean": 0.4}, step=12, epoch=2, mode="train")
    writer.close()
    glance, run = glance_at(path), open_run(path)
    assert (glance.step, glance.epoch) == (run.step, run.epoch) == (12, 2)


def test_run_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """A pipe in place of the event file is not opened, which would wait for its writer."""
    os.mkfifo(tmp_path / event_file_name(0))
    assert glance_at(tmp_path).status == "unknown"
