"""`trackside report`: what it prints and where it writes."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.tiny_run import call
from trackside import cli


@pytest.fixture
def run_copy(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to write into and to damage."""
    return Path(shutil.copytree(trained_run, tmp_path / "tiny"))


def test_piped_report_is_plain_and_fits(trained_run: Path) -> None:
    """The real command, piped: 80 columns, no colours, no trailing spaces, verdicts before figures."""
    done = call("report", trained_run, "--no-html")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    assert done.stdout.index("finding") < done.stdout.index("where the time went") < done.stdout.index("step time")


def test_page_is_written_and_its_path_printed(run_copy: Path, capsys: pytest.CaptureFixture) -> None:
    """By default, report.html is written into the run and its path printed in one line."""
    assert cli.run(["report", str(run_copy)]) == 0
    page = run_copy / "report.html"
    assert page.is_file()
    assert f"page    {page}\n" in capsys.readouterr().out


def test_page_goes_where_it_is_asked_for(run_copy: Path, tmp_path: Path) -> None:
    """`--html FILE` writes the page there, and none into the run."""
    page = tmp_path / "elsewhere.html"
    assert cli.run(["report", str(run_copy), "--html", str(page)]) == 0
    assert page.is_file()
    assert not (run_copy / "report.html").exists()


def test_page_that_cannot_be_written_is_an_error(run_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Where the page cannot be written, the report is printed all the same, and the error names the file."""
    (tmp_path / "file").touch()
    assert cli.run(["report", str(run_copy), "--html", str(tmp_path / "file" / "page.html")]) == 2
    printed = capsys.readouterr()
    assert "step time" in printed.out
    assert str(tmp_path / "file" / "page.html") in printed.err


def test_no_page(run_copy: Path) -> None:
    """`--no-html` writes nothing into the run."""
    before = sorted(run_copy.iterdir())
    assert cli.run(["report", str(run_copy), "--no-html"]) == 0
    assert sorted(run_copy.iterdir()) == before


def test_json_goes_into_the_run(run_copy: Path, capsys: pytest.CaptureFixture) -> None:
    """`--json` writes summary.json into the run, of a form that names its version, and prints the path."""
    assert cli.run(["report", str(run_copy), "--no-html", "--json"]) == 0
    summary = json.loads((run_copy / "summary.json").read_text())
    assert summary["format"] == "trackside.summary/1"
    assert summary["status"] == "success"
    assert str(run_copy / "summary.json") in capsys.readouterr().out


def test_json_goes_to_a_file(run_copy: Path, tmp_path: Path) -> None:
    """`--json FILE` writes there; the option may stand before the run."""
    assert cli.run(["report", "--no-html", "--json", str(tmp_path / "figures.json"), str(run_copy)]) == 0
    assert json.loads((tmp_path / "figures.json").read_text())["step"] > 0
    assert not (run_copy / "summary.json").exists()


def test_json_alone_on_the_output(run_copy: Path) -> None:
    """`--json -` prints JSON and nothing else, and writes no page."""
    done = call("report", run_copy, "--json", "-")
    assert json.loads(done.stdout)["format"] == "trackside.summary/1"
    assert not (run_copy / "report.html").exists()


def test_contradiction_is_an_error(run_copy: Path, capsys: pytest.CaptureFixture) -> None:
    """A page that is to be opened but not written is refused."""
    assert cli.run(["report", str(run_copy), "--no-html", "--open"]) == 2
    assert "--no-html and --open" in capsys.readouterr().err


def test_dead_run_is_said_to_be_dead(run_copy: Path, capsys: pytest.CaptureFixture) -> None:
    """A run without a final status that no process trains is dead, and its figures are still shown."""
    events = run_copy / "events-00000.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join(line for line in lines if '"kind":"status"' not in line))
    assert cli.run(["report", str(run_copy), "--no-html"]) == 0
    out = capsys.readouterr().out
    assert "dead: no final status was written" in out
    assert "step time" in out


def test_damage_is_told_at_the_end(run_copy: Path, capsys: pytest.CaptureFixture) -> None:
    """What is wrong with the files comes last, after all that could be read."""
    with (run_copy / "events-00000.jsonl").open("a") as file:
        file.write('{"kind":"metrics","t":17\n')
    (run_copy / "config.json").unlink()
    assert cli.run(["report", str(run_copy), "--no-html"]) == 0
    out = capsys.readouterr().out
    problems = out[out.index("problems with the run's files") :]
    assert "events-00000.jsonl" in problems
    assert "config.json" in problems
    assert "step time" not in problems


def test_colours_on_request(trained_run: Path) -> None:
    """With FORCE_COLOR, the same report comes in colours."""
    done = call("report", trained_run, "--no-html", FORCE_COLOR="1")
    assert "\x1b[1;32msuccess" in done.stdout


def test_findings_are_silenced(run_copy: Path, capsys: pytest.CaptureFixture) -> None:
    """`--silence ID` leaves findings out of everything that is printed and written, and says so."""
    silence = ["--silence", "ragged-last-batch", "--silence", "high_loss_fn_computation"]
    assert cli.run(["report", str(run_copy), "--json", *silence]) == 0
    assert "1 finding silenced (ragged-last-batch)" in capsys.readouterr().out
    summary = json.loads((run_copy / "summary.json").read_text(encoding="utf-8"))
    assert "ragged_last_batch" not in [finding["id"] for finding in summary["findings"]]
    assert [finding["id"] for finding in summary["silenced"]] == ["ragged_last_batch"]
    page = (run_copy / "report.html").read_text(encoding="utf-8")
    assert "1 finding silenced (ragged-last-batch)." in page
    assert "the last batch is smaller" not in page


def test_unknown_finding_is_an_error(trained_run: Path, capsys: pytest.CaptureFixture) -> None:
    """With the nearest one."""
    assert cli.run(["report", str(trained_run), "--silence", "ragged-batch"]) == 2
    assert "--silence: expected the id of a finding, got 'ragged-batch'. Did you mean 'ragged-last-batch'?" in (
        capsys.readouterr().err
    )
