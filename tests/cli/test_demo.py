"""`trackside demo`."""

import sys
from pathlib import Path

import pytest

from trackside import cli, demo
from trackside.demo import remove_earlier_run
from trackside.errors import ConfigError
from trackside.events import read_events
from trackside.run_layout import event_file_name


@pytest.mark.slow
def test_demo_learns_the_digits_and_explains_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo reaches over 95 %, calls its slow loader by name, compares its runs, and says where the reports are.

    A third of its epochs is enough for all of that.
    """
    monkeypatch.setattr(demo, "NUM_EPOCHS", 20)
    run_dir = tmp_path / "demo"
    assert cli.run(["demo", "--run-dir", str(run_dir), "trainer.enable_progress_bar=false"]) == 0
    out = capsys.readouterr().out
    (test_line,) = [line for line in out.splitlines() if line.strip().startswith("test ")]
    assert float(test_line.split()[-1].rstrip("%")) > 95
    assert "input-bound" in out
    assert str(run_dir / "report.html") in out
    assert (run_dir / "report.html").is_file()
    assert (tmp_path / "demo-slow" / "report.html").is_file()
    comparison = out.split(" what changed ")[1].split(" what is left ")[0]
    assert "demo-slow" in comparison
    assert "waiting for data" in comparison
    statuses = [row["status"] for row in read_events(run_dir / event_file_name(0)) if row["kind"] == "status"]
    assert statuses == ["success"]


def test_command_to_type_next_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the command is not on the path, the demo says where it is; where it is on the path, its name is enough."""
    monkeypatch.setenv("PATH", "/nowhere")
    first = demo.command().split()[0]
    assert Path(first).is_file()
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert demo.command() == "trackside"


def test_mistaken_override_is_an_error_without_traceback(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """An override that names no field exits with 2 and proposes the field that was meant."""
    assert cli.run(["demo", "--run-dir", str(tmp_path), "trainer.sed=1"]) == 2
    assert "'seed'" in capsys.readouterr().err


def test_demo_makes_room_for_itself(tmp_path: Path) -> None:
    """A folder that holds an earlier run is removed, so that the demo runs again in the same place."""
    run_dir = tmp_path / "demo"
    run_dir.mkdir()
    (run_dir / event_file_name(0)).write_text("")
    remove_earlier_run(run_dir)
    assert not run_dir.exists()


def test_demo_does_not_remove_what_is_not_its_own(tmp_path: Path) -> None:
    """A folder that holds no run is left alone."""
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="choose another folder"):
        remove_earlier_run(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
