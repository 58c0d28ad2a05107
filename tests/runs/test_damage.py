"""Files that are damaged, missing, older or newer: read around, and said."""

import shutil
from pathlib import Path

import pytest

from tests.runs.written import WrittenRun, finished_run
from trackside.compare import compare_runs
from trackside.report import summarise_run
from trackside.report.html import render_html
from trackside.runs import open_run


def write_processes(folder: Path, num: int = 3) -> list[WrittenRun]:
    """A run of several processes."""
    runs = []
    for index in range(num):
        run = WrittenRun(folder, index).with_config_file().write("environment", hostname=f"node-{index}")
        runs.append(run.leg().metrics(10, loss=1.0 + index).ledger(10, 10, dispatch=1.0).end(step=10))
    return runs


@pytest.mark.parametrize("torn", [b'{"kind":"metrics","t":1.0,"st', b'{"kind":"led', b"\xff\xfe\x00{", b"[1, 2]", b"7"])
def test_line_in_the_middle(tmp_path: Path, torn: bytes) -> None:
    """A torn or damaged line is left out and counted, and the rows around it are read."""
    written = WrittenRun(tmp_path).with_config_file().leg().metrics(1, loss=1.0)
    written.append(torn + b"\n")
    written.metrics(2, loss=2.0).end(step=2)
    run = open_run(tmp_path)
    assert run.metrics["train"]["loss"].tolist() == [1.0, 2.0]
    assert run.problems == ["events-00000.jsonl: 1 torn or damaged line was skipped"]


def test_torn_last_line(tmp_path: Path) -> None:
    """A last line without an end, of a run that nobody writes any more, is said."""
    written = WrittenRun(tmp_path).with_config_file().leg().metrics(1, loss=1.0)
    written.append(b'{"kind":"metrics","t":10')
    run = open_run(tmp_path)
    assert run.status == "dead"
    assert run.step == 1
    assert run.problems == ["events-00000.jsonl: 1 torn or damaged line was skipped"]


def test_torn_line_of_another_process(tmp_path: Path) -> None:
    """The other processes' metrics are not decoded, and a torn row among them is still said."""
    written = write_processes(tmp_path, 2)[1]
    written.append(b'{"kind":"metrics","t":1.0,"step":3,"epoch":1,"mode":"tra\n')
    assert open_run(tmp_path).problems == ["events-00001.jsonl: 1 torn or damaged line was skipped"]


def test_rows_that_lack_fields(tmp_path: Path) -> None:
    """Rows without a step, a mode or values are left out and counted."""
    written = WrittenRun(tmp_path).with_config_file().leg().metrics(1, loss=1.0)
    for row in (b'"epoch":1,"mode":"train","values":{}', b'"step":2,"values":{}', b'"step":2,"mode":"train"'):
        written.append(b'{"kind":"metrics","t":1.0,' + row + b"}\n")
    written.append(b'{"kind":"metrics","t":1.0,"step":1' + 30 * b"0" + b',"mode":"train","values":{"loss":1}}\n')
    written.append(b'{"kind":"leg","t":1.0}\n')
    run = open_run(tmp_path)
    assert run.metrics["train"].step.tolist() == [1]
    assert run.problems == ["events-00000.jsonl: 5 rows that lacked fields were skipped"]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_rows_of_other_kinds_may_lack_anything(tmp_path: Path, num_processes: int) -> None:
    """No attribute raises because of a row that has nothing but its kind and time."""
    for index in range(num_processes):
        write_bare_rows(WrittenRun(tmp_path, index))
    run = open_run(tmp_path)
    names = "status goal ledger legs goodput compiles captures memory checkpoints leaks timers findings config"
    for name in [*names.split(), "environment", "step_times", "hosts", "problems"]:
        getattr(run, name)
    assert run._repr_html_()


def test_readers_of_a_run_stand_rows_that_lack_anything(tmp_path: Path) -> None:
    """Summary, page and comparison are made of what is left."""
    for name in ("a", "b"):
        write_bare_rows(WrittenRun(tmp_path / name))
    run = open_run(tmp_path / "a")
    assert summarise_run(run).num_captures == 0
    assert "</html>" in render_html(run)
    assert compare_runs(tmp_path / "a", tmp_path / "b").compiles == ()


def test_captures_compiles_and_leaks_that_lack_fields(tmp_path: Path) -> None:
    """Rows that tell nothing are left out and counted; memory that is not told of is empty."""
    written = WrittenRun(tmp_path).with_config_file().leg()
    written.write("capture", first_step=1, last_step=None, path="x").write("compile", step=1).write("memory_leak")
    written.write("memory", step=1, live=None)
    run = open_run(tmp_path)
    assert (run.captures, run.compiles, run.leaks) == ([], [], [])
    assert [(row["memory"], row["live"]) for row in run.memory] == [({}, {})]
    assert run.problems == ["events-00000.jsonl: 3 rows that lacked fields were skipped"]


@pytest.mark.parametrize("damage", [b'"step":7', b'"t":"soon","step":7', b'"t":1.0,"step":"many"'])
def test_row_that_is_counted_as_skipped_is_skipped(tmp_path: Path, damage: bytes) -> None:
    """A row without a time, or with a step that is none, is not among the rows."""
    written = WrittenRun(tmp_path).with_config_file().leg().metrics(9, loss=1.0)
    written.append(b'{"kind":"leg",' + damage + b"}\n")
    run = open_run(tmp_path)
    assert (len(run.legs), run.metrics["train"].step.tolist()) == (1, [9])
    assert run.problems == ["events-00000.jsonl: 1 row that lacked fields was skipped"]


def write_bare_rows(written: WrittenRun) -> None:
    """Rows of all kinds with nothing in them."""
    kinds = "environment config compile capture checkpoint memory memory_leak profiling finding between_epochs ledger"
    for kind in [*kinds.split(), "leg_end", "status"]:
        written.write(kind)
    written.leg()
    for kind in [*kinds.split(), "leg_end"]:
        written.write(kind)
    written.metrics(1, loss=1.0, step_time=0.1)


def test_missing_config_file(tmp_path: Path) -> None:
    """The configuration of the event file serves, and that is said."""
    finished_run(tmp_path)
    (tmp_path / "config.json").unlink()
    run = open_run(tmp_path)
    assert run.config["trainer"] == {"seed": 7}
    assert run.problems == ["config.json is missing; the configuration was read from the event file"]


def test_missing_first_process(tmp_path: Path) -> None:
    """Without the file of process 0, the next one tells of the run."""
    write_processes(tmp_path)[0].path.unlink()
    run = open_run(tmp_path)
    assert run.metrics["train"]["loss"].tolist() == [2.0]
    assert run.status == "success"
    assert run.process_indices == [1, 2]
    assert run.problems == ["events-00000.jsonl is missing"]


def test_missing_process_among_many(tmp_path: Path) -> None:
    """A gap in the numbers of processes is said, a few by name and more by their number."""
    for written in write_processes(tmp_path, 8)[1:7]:
        written.path.unlink()
    assert open_run(tmp_path).problems == [
        "events-00001.jsonl is missing",
        "events-00002.jsonl is missing",
        "events-00003.jsonl is missing",
        "3 more event files up to events-00006.jsonl are missing",
    ]


def test_empty_file(tmp_path: Path) -> None:
    """A run that has written nothing yet has no rows, and says so."""
    (tmp_path / "events-00000.jsonl").touch()
    run = open_run(tmp_path)
    assert (run.status, run.step, dict(run.metrics), len(run.step_times)) == ("dead", 0, {}, 0)
    assert run.problems == ["events-00000.jsonl has no rows"]


def test_newer_version_of_all(tmp_path: Path) -> None:
    """A run of a newer format is opened, and what to do is said."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "events-00000.jsonl").write_text('{"kind":"format","t":1.0,"version":4}\n{"kind":"novel","t":2.0}\n')
    run = open_run(tmp_path)
    assert run.status == "unknown"
    assert not run.is_finished
    assert run.problems == [
        "events-00000.jsonl: format version 4 is newer than 3, the newest that this trackside reads; what follows was "
        "not read: use a newer trackside"
    ]
    assert list(run.events()) == []


def test_newer_version_of_one_process(tmp_path: Path) -> None:
    """The processes of a format that can be read are read."""
    write_processes(tmp_path)
    (tmp_path / "events-00000.jsonl").write_text('{"kind":"format","t":1.0,"version":4}\n')
    run = open_run(tmp_path)
    assert run.metrics["train"]["loss"].tolist() == [2.0]
    assert len(run.problems) == 1


def test_newer_version_after_an_older_leg(tmp_path: Path) -> None:
    """What came before a row of a newer format is read."""
    written = finished_run(tmp_path)
    written.append(b'{"kind":"format","t":2000.0,"version":4}\n{"kind":"metrics","t":1,"step":999,"mode":"train"}\n')
    run = open_run(tmp_path)
    assert (run.step, len(run.metrics["train"])) == (100, 10)
    assert len(run.problems) == 1


def test_older_version(tmp_path: Path) -> None:
    """An older format is read as far as it goes, and that is said."""
    written = finished_run(tmp_path)
    written.path.write_bytes(written.path.read_bytes().replace(b'"version":3', b'"version":0'))
    run = open_run(tmp_path)
    assert run.step == 100
    assert run.problems == ["events-00000.jsonl: format version 0 is older than 1; what it lacks was left out"]


def test_version_before_packed_rows(tmp_path: Path) -> None:
    """A file of an earlier version lacks nothing."""
    written = finished_run(tmp_path)
    written.path.write_bytes(written.path.read_bytes().replace(b'"version":3', b'"version":1'))
    assert open_run(tmp_path).problems == []


def test_no_version(tmp_path: Path) -> None:
    """A file without a version is read, and that is said."""
    written = finished_run(tmp_path)
    written.path.write_bytes(b"".join(written.path.read_bytes().splitlines(keepends=True)[1:]))
    run = open_run(tmp_path)
    assert run.step == 100
    assert run.problems == ["events-00000.jsonl: no format version is given; it was read as version 3"]


def test_spaces_and_another_order_of_fields(tmp_path: Path) -> None:
    """A row of metrics that another program wrote in its own way is a row of metrics."""
    written = WrittenRun(tmp_path).metrics(1, loss=1.0)
    written.append(b'{"t": 5.0, "mode": "train", "kind": "metrics", "values": {"loss": 2}, "step": 2, "epoch": 3}\n')
    table = open_run(tmp_path).metrics["train"]
    assert (table["loss"].tolist(), table.epoch.tolist()) == ([1.0, 2.0], [1, 3])


def test_folder_that_vanishes(tmp_path: Path) -> None:
    """What was read stays when the files are gone."""
    finished_run(tmp_path / "run")
    run = open_run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    assert not run.refresh()
    assert run.status == "success"
