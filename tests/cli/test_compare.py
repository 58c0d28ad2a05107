"""`trackside compare`: its exit codes and forms. What it finds is tested with `trackside.compare`."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.tiny_run import call
from trackside import cli
from trackside.events import EventWriter
from trackside.run_layout import event_file_name


def write_run(path: Path, step_time_s: float) -> Path:
    """A run of two thousand steps of the given length, with a little noise."""
    path.mkdir()
    writer = EventWriter(path / event_file_name(0))
    writer.write("leg", leg=1, step=0, epoch=0)
    for row in range(1, 401):
        noise = 1 + 0.01 * ((row * 7919) % 13 - 6) / 6
        writer.write_metrics({"loss_mean": 1.0, "step_time": step_time_s * noise}, step=5 * row, epoch=1, mode="train")
    writer.write("status", status="success", step=2000, epoch=1)
    writer.close()
    return path


def test_regression_exits_with_1(tmp_path: Path) -> None:
    """A run whose steps take half as long again is a regression: exit code 1 of the real command."""
    before, after = write_run(tmp_path / "before", 0.010), write_run(tmp_path / "after", 0.015)
    done = call("compare", before, after, "--max-slowdown", "5%")
    assert done.returncode == 1
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_no_limit_no_regression(tmp_path: Path) -> None:
    """Without a limit, the difference is shown and the exit code is 0."""
    before, after = write_run(tmp_path / "before", 0.010), write_run(tmp_path / "after", 0.015)
    assert cli.run(["compare", str(before), str(after)]) == 0


def test_faster_run_is_no_regression(tmp_path: Path) -> None:
    """A run that became faster exits with 0."""
    before, after = write_run(tmp_path / "before", 0.015), write_run(tmp_path / "after", 0.010)
    assert cli.run(["compare", str(before), str(after), "--max-slowdown", "5%"]) == 0


def test_missing_run_exits_with_2(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """An error is neither a regression nor the absence of one."""
    assert cli.run(["compare", str(trained_run), str(tmp_path / "nope"), "--max-slowdown", "5%"]) == 2
    assert "nope" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limit", "said"), [("5", "--max-slowdown: 5 is 500 %; write 5% or 0.05"), ("fast", "max_slowdown")]
)
def test_limit_that_makes_no_sense_exits_with_2(
    limit: str, said: str, trained_run: Path, capsys: pytest.CaptureFixture
) -> None:
    """A limit of 5 was meant as 5 %: 500 % would never raise an alarm."""
    assert cli.run(["compare", str(trained_run), str(trained_run), "--max-slowdown", limit]) == 2
    assert said in capsys.readouterr().err


def test_json_alone_on_the_output(trained_run: Path, capsys: pytest.CaptureFixture) -> None:
    """`--json` prints JSON and nothing else."""
    assert cli.run(["compare", str(trained_run), str(trained_run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"].startswith("trackside.compare/")


def test_page_is_self_contained_and_escaped(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """`--html FILE` writes a page that loads nothing, in which the name of a run stays text, and says where."""
    hostile = Path(shutil.copytree(trained_run, tmp_path / "<script>alert(1)<"))
    page = tmp_path / "page.html"
    assert cli.run(["compare", str(trained_run), str(hostile), "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "default-src &#x27;none&#x27;" in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;" in text
    assert capsys.readouterr().out.endswith(f"page {page}\n")


def test_page_beside_json_is_not_told_of(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """With `--json` the page is written too, and the output is JSON alone."""
    page = tmp_path / "page.html"
    assert cli.run(["compare", str(trained_run), str(trained_run), "--json", "--html", str(page)]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_page_that_cannot_be_written_exits_with_2(trained_run: Path, capsys: pytest.CaptureFixture) -> None:
    """A folder in place of the file is an error in one line, not a regression."""
    assert cli.run(["compare", str(trained_run), str(trained_run), "--html", str(trained_run)]) == 2
    assert "choose another file" in capsys.readouterr().err
