"""`trackside trace`."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from trackside import cli


@pytest.fixture(scope="module")
def foreign_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace that trackside did not take."""
    directory = tmp_path_factory.mktemp("trace")
    step = jax.jit(lambda x: jnp.tanh(x @ x))
    step(jnp.ones((64, 64))).block_until_ready()
    with jax.profiler.trace(str(directory)):
        step(jnp.ones((64, 64))).block_until_ready()
    return directory


def test_tables_are_printed(foreign_trace: Path, capsys: pytest.CaptureFixture) -> None:
    """A trace that trackside did not take is shown as tables that fit 80 columns."""
    assert cli.run(["trace", str(foreign_trace)]) == 0
    out = capsys.readouterr().out
    assert "Coverage" in out
    lines = [line for line in out.splitlines() if str(foreign_trace) not in line]
    assert max(map(len, lines)) <= 80


def test_tables_as_json(foreign_trace: Path, capsys: pytest.CaptureFixture) -> None:
    """`--json` prints the tables for a script, and nothing else."""
    assert cli.run(["trace", str(foreign_trace), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "trackside.trace/1"
    assert report["coverage"]["busy_s"] > 0


def test_without_a_trace_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A folder that holds no trace exits with 2 and names it, without a traceback."""
    assert cli.run(["trace", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
