"""The command line and the demo."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from trackside import cli
from trackside.demo import remove_earlier_run
from trackside.errors import ConfigError
from trackside.events import event_file_name, read_events


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["trackside", *arguments])
    cli.main()


@pytest.mark.slow
def test_demo_learns_the_digits_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The demo reaches over 95 % on the test set, says where the run is, and runs again in the same place."""
    run_dir = tmp_path / "demo"
    for _ in range(2):
        run(monkeypatch, "demo", "--run-dir", str(run_dir), "trainer.enable_progress_bar=false")
        out = capsys.readouterr().out
        (test_line,) = [line for line in out.splitlines() if line.strip().startswith("test ")]
        assert float(test_line.split()[-1].rstrip("%")) > 95
        assert str(run_dir) in out
        assert "steps per second" in out
    statuses = [row["status"] for row in read_events(run_dir / event_file_name(0)) if row["kind"] == "status"]
    assert statuses == ["success"]


def test_mistaken_override_is_an_error_without_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """An override that names no field exits with 2 and proposes the field that was meant."""
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "demo", "--run-dir", str(tmp_path), "trainer.sed=1")
    assert caught.value.code == 2
    assert "'seed'" in capsys.readouterr().err


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """The version is printed."""
    run(monkeypatch, "version")
    assert capsys.readouterr().out.startswith("trackside ")


def test_demo_does_not_remove_what_is_not_its_own(tmp_path: Path) -> None:
    """A folder that holds no run is left alone."""
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="choose another folder"):
        remove_earlier_run(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_trace_prints_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """`trackside trace` reads a trace that trackside did not take: as a table, and as JSON."""
    step = jax.jit(lambda x: jnp.tanh(x @ x))
    step(jnp.ones((64, 64))).block_until_ready()
    with jax.profiler.trace(str(tmp_path)):
        step(jnp.ones((64, 64))).block_until_ready()
    run(monkeypatch, "trace", str(tmp_path))
    out = capsys.readouterr().out
    assert "Coverage" in out
    assert max(map(len, out.splitlines())) <= 120
    run(monkeypatch, "trace", str(tmp_path), "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "trackside.trace/1"
    assert report["coverage"]["busy_s"] > 0


def test_trace_without_a_trace_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A folder that holds no trace exits with 2 and names it, without a traceback."""
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "trace", str(tmp_path))
    assert caught.value.code == 2
    assert str(tmp_path) in capsys.readouterr().err
