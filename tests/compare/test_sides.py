from pathlib import Path

import numpy as np
import pytest

from trackside.compare.sides import read_side
from trackside.events import EventWriter, event_file_name

STEP_S = 5e-3


def write_epochs(folder: Path, num_epochs: int, steps_per_epoch: int) -> Path:
    """A training with a slow loader: the loop hears of the last two steps of each epoch at once."""
    folder.mkdir()
    writer = EventWriter(folder / event_file_name(0))
    writer.write("leg", leg=1, step=0, epoch=0, train_time_s=0.0)
    for step in range(1, num_epochs * steps_per_epoch + 1):
        epoch, place = divmod(step - 1, steps_per_epoch)
        late = 3 * STEP_S if place == 0 else 0.0 if place >= steps_per_epoch - 2 else STEP_S
        writer.write_metrics({"step_time": late}, step, epoch + 1, "train")
        if place == steps_per_epoch - 1:
            writer.write_metrics({"epoch_time": 1.0}, step, epoch + 1, "train_epoch")
    writer.close()
    return folder


def test_steps_at_the_ends_of_epochs_are_left_out(tmp_path: Path):
    """What the loop hears of at once says nothing of a step: what remains has the true time, and is most of the run."""
    steps = read_side(write_epochs(tmp_path / "run", num_epochs=4, steps_per_epoch=50)).steps
    np.testing.assert_allclose(steps.seconds, STEP_S)
    assert len(steps.seconds) + steps.num_left_out == 200
    assert len(steps.seconds) >= 150


def test_of_short_epochs_nothing_more_is_left_out(tmp_path: Path):
    """Where hardly a step would remain, all that are clean count."""
    steps = read_side(write_epochs(tmp_path / "run", num_epochs=20, steps_per_epoch=8)).steps
    assert len(steps.seconds) == 150  # all but the warm-up


def test_a_real_run_keeps_its_steps(plain_run: Path):
    """A training of one epoch keeps nearly all of its steps."""
    steps = read_side(plain_run).steps
    assert len(steps.seconds) >= 40
    assert steps.batch_size == pytest.approx(8)
