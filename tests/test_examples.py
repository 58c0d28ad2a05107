"""The examples: each runs by itself, prints what it did, and writes only to the folder that it is given."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import fork_server

EXAMPLES = Path(__file__).parent.parent / "examples"
# A line that each example must print.
EXPECTED_LINES = {
    "char_transformer": "Beautiful is better than",
    "decode_velocity": "both decode well: True",
    "digits_cnn": "test accuracy 0.9",
    "fit_callbacks": "best validation loss 0.02",
    "full_trainer": "test loss 0.0",
    "own_loop": "success: 320 steps, validation loss 0.0",
    "own_metrics": "rows that the tool received: success: {'train': 6, 'train_epoch': 2, 'val': 2}",
    "plain_functions": "test loss 0.0",
    "regression": "test loss 0.0",
    "several_devices": "the kernel (16, 64) is split into parts of (8, 32) on 8 devices",
    "ssm_decoder": "R2 on new trials 0.9",
    "several_processes": "both processes trained one model and wrote ['events-00000.jsonl', 'events-00001.jsonl']",
}


def test_every_example_is_checked() -> None:
    """Every example has a check, and every check has an example."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == EXPECTED_LINES.keys()


@pytest.mark.parametrize("name", sorted(EXPECTED_LINES.keys() - {"decode_velocity"}))
def test_example_is_short(name: str) -> None:
    """An example has fewer than a hundred lines; only the one with two libraries has more."""
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 100


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED_LINES)
def test_example_runs(name: str, tmp_path: Path) -> None:
    """An example exits with 0, prints its line, and does not write to its working directory.

    The first that a user sees runs in a fresh interpreter, where a warning at an import would be an error too.
    """
    start = subprocess.run if name == "regression" else fork_server.run
    run_dir, working_directory = tmp_path / "run", tmp_path / "elsewhere"
    working_directory.mkdir()
    done = start(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), str(run_dir)],
        cwd=working_directory,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert EXPECTED_LINES[name] in done.stdout
    assert list(run_dir.rglob("events-00000.jsonl"))
    assert not list(working_directory.iterdir())
