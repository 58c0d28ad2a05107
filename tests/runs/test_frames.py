"""The parts of a run as data frames."""

from pathlib import Path

import pytest

from tests.runs.written import WrittenRun, finished_run
from trackside.errors import ConfigError
from trackside.findings import Finding
from trackside.runs import Run, open_run
from trackside.runs.frames import FRAMES

pytest.importorskip("pandas")

FINDING = Finding("input_bound", "warning", "waits for data", {"wait_share": 0.5}, "load faster")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with a row of everything."""
    written = WrittenRun(tmp_path).leg().metrics(10, loss=1.0)
    written.write("compile", function="train_step", step=1, compile_s=0.5)
    written.write("capture", path="x", first_step=3, last_step=4, report={"scopes": []})
    written.write("memory", step=5, live={"params": 100}, memory={"gpu:0": {"bytes_in_use": 7}})
    written.write("checkpoint", step=7, path="y")
    written.ledger(10, 10, data_wait=1.0, device_wait=3.0).end(step=10)
    return open_run(tmp_path)


@pytest.mark.parametrize(
    ("what", "columns"),
    [
        ("compiles", {"t": 1003.0, "function": "train_step", "step": 1, "compile_s": 0.5}),
        ("captures", {"t": 1004.0, "path": "x", "first_step": 3, "last_step": 4}),
        ("memory", {"t": 1005.0, "step": 5, "live.params": 100, "memory.gpu:0.bytes_in_use": 7}),
        ("checkpoints", {"t": 1006.0, "step": 7, "path": "y"}),
    ],
)
def test_rows(run: Run, what: str, columns: dict[str, object]) -> None:
    """A frame has a line per row and a column per field; a capture's report is left out."""
    assert run.to_pandas(what).to_dict("records") == [columns]


def test_findings(tmp_path: Path) -> None:
    """A finding is a line with its fields."""
    WrittenRun(tmp_path).leg().write("finding", **FINDING.to_dict()).end()
    assert open_run(tmp_path).to_pandas("findings").to_dict("records") == [FINDING.to_dict()]


def test_legs(run: Run) -> None:
    """A leg is a line with its steps and how it ended."""
    (leg,) = run.to_pandas("legs").to_dict("records")
    assert (leg["number"], leg["first_step"], leg["last_step"], leg["status"]) == (1, 0, 10, "success")


def test_ledger(run: Run) -> None:
    """Each part has its seconds and its share of the whole."""
    frame = run.to_pandas("ledger")
    assert frame.loc["data_wait"].to_dict() == {"seconds": 1.0, "share": 0.25}
    assert frame["share"].sum() == pytest.approx(1.0)


@pytest.mark.parametrize("what", FRAMES)
def test_run_that_has_none(tmp_path: Path, what: str) -> None:
    """What a run does not have is a frame without lines."""
    WrittenRun(tmp_path).metrics(1, loss=1.0)
    assert len(open_run(tmp_path).to_pandas(what)) == 0


@pytest.mark.parametrize(
    ("what", "said"), [("compile", "'compiles', 'captures'"), ("metrics", r"metrics\[\"train\"\]")]
)
def test_unknown_part_is_refused(tmp_path: Path, what: str, said: str) -> None:
    """The error names the argument and the choices."""
    finished_run(tmp_path)
    with pytest.raises(ConfigError, match=rf"^what: expected one of .*{said}.*"):
        open_run(tmp_path).to_pandas(what)
