"""Runs in a notebook: what they show, and that a real kernel shows it without importing jax."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.report.made_up import write_run
from tests.runs.written import WrittenRun, finished_run
from trackside.runs import open_run

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script> \"'"


def test_run_shows_itself_without_scripts(tmp_path: Path) -> None:
    """Status, figures, the loss as a picture and the ledger are in a few kilobytes of well-formed HTML."""
    finished_run(tmp_path / "run")
    shown = open_run(tmp_path / "run")._repr_html_()
    for text in ("run", "success", "best train_loss", "0.01 at step 100", "waiting for the device 75 %"):
        assert text in shown
    assert "<path" in shown
    assert not re.search(r"<(script|style|link|img|iframe)|url\(|https?:", shown)
    assert len(shown) < 20_000
    ElementTree.fromstring(shown.replace("&emsp;", " "))  # every element is closed


def test_stop_and_goal_are_told(tmp_path: Path) -> None:
    """Early stopping says at which step and why."""
    run = WrittenRun(tmp_path).leg(goal=1000).metrics(28, "val", loss=1.0)
    run.write("stop", reason="early stopping: val_loss did not improve", step=28).end(step=28)
    shown = open_run(tmp_path)._repr_html_()
    assert "stopped early at step 28: val_loss did not improve" in shown
    assert "28 of 1,000" in shown


def test_run_without_anything_shows_itself(tmp_path: Path) -> None:
    """A run that has only begun has a status, and nothing fails."""
    WrittenRun(tmp_path).leg()
    assert "dead" in open_run(tmp_path)._repr_html_()


def test_names_from_a_run_are_no_markup(tmp_path: Path) -> None:
    """Whatever a run is called and calls its metrics, parts and findings stays text."""
    shown = open_run(write_run(tmp_path / "<img src=y>", HOSTILE))._repr_html_()
    assert "<img" not in shown
    assert "<script" not in shown
    assert "&lt;img src=y&gt;" in shown


CELLS = (
    "import trackside\nrun = trackside.open_run('run')\nrun",
    "run.plot('loss', x='time', smooth=0.9)",
    "run.plot.step_time()",
    "run.metrics['train']",
    "from trackside.report import show_report\nshow_report(run, height_px=500)",
    "import sys\n'jax' in sys.modules",
)


@pytest.mark.slow
def test_notebook_is_executed(tmp_path: Path) -> None:
    """A kernel shows a run, figures, a table and the page where they are the last line of a cell, and needs no jax."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    run = finished_run(tmp_path / "run", num_rows=30)
    run.events.close()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown, metric, step_time, table, page, has_jax = (cell.outputs[-1].data for cell in notebook.cells)
    assert "success" in shown["text/html"]
    for figure in (metric, step_time):
        assert figure["application/vnd.plotly.v1+json"]["data"]
    assert "<table>" in table["text/html"]
    assert page["text/html"].startswith('<iframe sandbox="allow-scripts" srcdoc="&lt;!doctype html&gt;')
    assert has_jax["text/plain"] == "False"
