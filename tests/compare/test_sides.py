from pathlib import Path

import numpy as np
import pytest

from tests.compare.written_runs import write_run
from trackside.compare.sides import read_side, read_sides
from trackside.events import EventWriter
from trackside.run_layout import event_file_name
from trackside.runs import RunError

STEP_S = 5e-3


def write_epochs(folder: Path, num_epochs: int, steps_per_epoch: int, last_s: float = 1e-6) -> Path:
    """A training with a slow loader: the loop hears of the last two steps of each epoch at once."""
    folder.mkdir()
    writer = EventWriter(folder / event_file_name(0))
    writer.write("leg", leg=1, step=0, epoch=0, train_time_s=0.0)
    for step in range(1, num_epochs * steps_per_epoch + 1):
        epoch, place = divmod(step - 1, steps_per_epoch)
        late = 3 * STEP_S if place == 0 else last_s if place >= steps_per_epoch - 2 else STEP_S
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


def test_steps_of_no_time_are_left_out(tmp_path: Path):
    """A clock may tell no time between two steps that are heard of at once: such a step is none of the series."""
    steps = read_side(write_epochs(tmp_path / "run", num_epochs=20, steps_per_epoch=8, last_s=0.0)).steps
    assert (steps.seconds > 0).all()
    assert len(steps.seconds) == len(steps.num_steps)
    assert len(steps.seconds) + steps.num_left_out == 160


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (("main/run", "branch/run"), ("main/run", "branch/run")),
        (("main/seed/run", "branch/seed/run"), ("main/seed/run", "branch/seed/run")),
        (("first", "second"), ("first", "second")),
        (("run", "run"), ("run", "run")),
    ],
)
def test_runs_of_one_name_are_told_apart(tmp_path: Path, folders: tuple[str, str], names: tuple[str, str]):
    """Runs called the same go by as many folders as they differ in; a run beside itself has but one name."""
    for folder in set(folders):
        write_run(tmp_path / folder, STEP_S, num_steps=30)
    sides = read_sides(*(tmp_path / folder for folder in folders))
    assert tuple(side.name for side in sides) == names
    assert tuple(side.steps.name for side in sides) == names


def test_a_real_run_keeps_its_steps(plain_run: Path):
    """A training of one epoch keeps nearly all of its steps."""
    steps = read_side(plain_run).steps
    assert len(steps.seconds) >= 40
    assert steps.batch_size == pytest.approx(8)


def test_a_folder_of_runs_is_no_side(tmp_path):
    """The error names the runs, and does not speak of traces."""
    (tmp_path / "runs").mkdir()
    write_epochs(tmp_path / "runs" / "first", num_epochs=2, steps_per_epoch=4)
    with pytest.raises(RunError, match=r"is no run, but holds some; open one of them: .*first"):
        read_side(tmp_path / "runs")
