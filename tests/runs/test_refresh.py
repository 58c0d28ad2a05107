"""Reading on: what was appended since, and nothing else."""

from pathlib import Path

from tests.runs.written import WrittenRun, finished_run
from trackside.runs import open_run


def test_rows_that_were_appended(tmp_path: Path) -> None:
    """New rows are there after a refresh, which says whether there were any."""
    written = WrittenRun(tmp_path).leg().metrics(1, loss=1.0)
    run = open_run(tmp_path)
    assert run.metrics["train"].step.tolist() == [1]
    assert not run.refresh()
    written.metrics(2, loss=2.0, grad=3.0).ledger(2, 2, dispatch=1.0).end(step=2)
    assert run.refresh()
    assert run.metrics["train"].step.tolist() == [1, 2]
    assert (run.status, run.step) == ("success", 2)
    assert run.ledger is not None


def test_line_that_was_not_complete(tmp_path: Path) -> None:
    """A line that had no end at the last reading is read when it has one."""
    written = WrittenRun(tmp_path).with_config_file().leg().metrics(1, loss=1.0)
    line = b'{"kind":"metrics","t":1009.0,"step":2,"epoch":1,"mode":"train","values":{"loss":2.0}}\n'
    run = open_run(tmp_path)
    for end in range(5, len(line), 20):
        written.append(line[:20] if end == 5 else b"")
        run.refresh()
        assert run.step == 1
    written.append(line[20:])
    assert run.refresh()
    assert run.metrics["train"]["loss"].tolist() == [1.0, 2.0]
    assert run.problems == []


def test_only_new_bytes_are_read(tmp_path: Path) -> None:
    """What was read before is not looked at again, whatever stands there now."""
    written = WrittenRun(tmp_path).leg().metrics(1, loss=1.0)
    run = open_run(tmp_path)
    size = written.path.stat().st_size
    with written.path.open("r+b") as file:
        file.write(b"#" * (size - 1))
    written.metrics(2, loss=2.0)
    run.refresh()
    assert run.metrics["train"]["loss"].tolist() == [1.0, 2.0]


def test_leg_that_goes_on_from_an_earlier_step(tmp_path: Path) -> None:
    """A leg that begins between two readings drops the rows that it trains again."""
    written = WrittenRun(tmp_path).leg().metrics(10, loss=1.0).metrics(20, loss=2.0)
    run = open_run(tmp_path)
    assert len(run.metrics["train"]) == 2
    written.leg(2, step=10).metrics(15, loss=3.0)
    run.refresh()
    assert run.metrics["train"].step.tolist() == [10, 15]
    assert [leg.number for leg in run.legs] == [1, 2]


def test_process_that_appears_later(tmp_path: Path) -> None:
    """A new event file is found, also if it is that of the first process."""
    WrittenRun(tmp_path, 1).leg().metrics(10, loss=1.0)
    run = open_run(tmp_path)
    WrittenRun(tmp_path, 0).leg().metrics(10, loss=2.0)
    WrittenRun(tmp_path, 2).leg().metrics(10, loss=3.0)
    assert run.refresh()
    assert run.process_indices == [0, 1, 2]
    assert run.metrics["train"]["loss"].tolist() == [2.0]


def test_file_that_was_replaced(tmp_path: Path) -> None:
    """A run that was deleted and started again in the same folder is read anew."""
    written = finished_run(tmp_path)
    run = open_run(tmp_path)
    written.path.unlink()
    WrittenRun(tmp_path).leg().metrics(3, loss=9.0)
    assert run.refresh()
    assert run.metrics["train"].step.tolist() == [3]
    assert run.status == "dead"
