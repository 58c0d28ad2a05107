"""The examples: each runs by itself, tells what it did, and writes only where it was told to."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# What each example has to say at the end of its work.
TELLING = {
    "decode_velocity": "both decode well: True",
    "own_metrics": "rows that the tool got: success: {'train': 6, 'train_epoch': 2, 'val': 2}",
    "regression": "test loss 0.0",
    "several_devices": "the kernel (16, 64) is held in parts of (8, 32) on 8 devices",
    "several_processes": "both have trained one model, and left ['events-00000.jsonl', 'events-00001.jsonl']",
}


def test_every_example_has_a_telling_line() -> None:
    """No example goes unchecked, and no check is left of an example that is gone."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TELLING.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", TELLING)
def test_example_runs(name: str, tmp_path: Path) -> None:
    """An example exits with 0, prints its telling line, and leaves its working directory as it was."""
    run_dir, working_directory = tmp_path / "run", tmp_path / "elsewhere"
    working_directory.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), str(run_dir)],
        cwd=working_directory,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert TELLING[name] in done.stdout
    assert list(run_dir.rglob("events-00000.jsonl"))
    assert not list(working_directory.iterdir())
