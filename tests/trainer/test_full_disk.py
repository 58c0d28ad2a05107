"""Trainings on disks that fill up or turn read-only: real ones, mounted for the test.

What must hold: the run ends and names the cause, earlier checkpoints are intact, and what can be logged is logged.
"""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests import fork_server
from tests.trainer.tiny import make_loader, make_trainer, rows_of
from trackside.callbacks import Callback, CallbackConfig, CheckpointConfig
from trackside.errors import CheckpointError, ConfigError, TracksideError
from trackside.events import read_events
from trackside.logger import FileLoggerConfig, LoggerConfig
from trackside.run_layout import event_file_name
from trackside.schedule import At
from trackside.trainer.checkpoint_store import CheckpointStore

# Threads of Orbax that cannot write tell their own thread too, which nobody listens to.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NUM_STEPS = 24
SAVED_EVERY = 2


class Wide(nn.Module):
    """Takes half a megabyte to save, so that a small disk is full after a few checkpoints."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(nn.Dense(20_000)(x))


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """A disk of four megabytes in a folder of its own."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs a process that may mount: {getattr(error, 'stderr', '') or error}")
    try:
        yield folder
    finally:
        while folder.is_mount():
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk") as folder:
        yield folder


def make_read_only(disk: Path) -> None:
    """Turn a disk read-only under its path; files that are open, such as a lock, forbid a plain remount."""
    subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)


def make_writable(disk: Path) -> None:
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def build(log_path: Path, save_top_k: int = -1, callbacks: tuple[CallbackConfig, ...] = (), **config: Any) -> Any:
    checkpoints = CheckpointConfig(every_n_steps=SAVED_EVERY, save_top_k=save_top_k, **config)
    return make_trainer(
        model_class=Wide,
        lr=1e-5,
        logger=LoggerConfig(log_path=log_path, log_tools=[FileLoggerConfig()]),
        callbacks=[checkpoints, *callbacks],
        resume="auto",
    )


def train(trainer: Any) -> None:
    trainer.train_model(make_loader(NUM_STEPS), num_epochs=1)


@dataclass(frozen=True)
class Outcome:
    """What a training has left."""

    root: Path
    checkpoints: Path
    status: str
    error: Exception | None

    @property
    def saved(self) -> list[int]:
        return CheckpointStore(self.checkpoints).steps()

    @property
    def failed_step(self) -> int:
        """The first step that could not be saved."""
        return self.saved[-1] + SAVED_EVERY


def outcome_of(trainer: Any, checkpoints: Path) -> Outcome:
    error = None
    try:
        train(trainer)
    except Exception as raised:
        error = raised
    return Outcome(trainer.logger.log_path, checkpoints, trainer.status, error)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """A training with everything on a disk that its checkpoints fill."""
    with mounted(tmp_path_factory.mktemp("all") / "disk") as disk:
        yield outcome_of(build(disk / "run"), disk / "run" / "checkpoints")


@pytest.fixture(scope="module")
def filled_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """A training whose checkpoints fill their disk, and whose logs are on another."""
    root = tmp_path_factory.mktemp("apart")
    with mounted(root / "disk") as disk:
        yield outcome_of(build(root / "run", dirpath=str(disk / "saved")), disk / "saved")


@pytest.fixture(params=["filled", "filled_apart"])
def outcome(request: pytest.FixtureRequest) -> Outcome:
    return request.getfixturevalue(request.param)


def test_full_disk_ends_the_run_with_the_cause(outcome: Outcome) -> None:
    """The error of a run whose checkpoints fill the disk names the folder and that there is no space."""
    assert isinstance(outcome.error, CheckpointError)
    assert str(outcome.checkpoints) in str(outcome.error)
    assert "No space left on device" in str(outcome.error)


def test_status_after_a_full_disk(outcome: Outcome) -> None:
    """A run that could not save has not succeeded, and its log says so."""
    assert outcome.status == "error"
    assert rows_of(outcome.root, "status")[-1]["status"] == "error"


def test_failed_save_is_in_the_event_file(outcome: Outcome) -> None:
    """The save that failed is a row with the folder and the cause."""
    row = rows_of(outcome.root, "checkpoint_failed")[0]
    assert row["path"] == str(outcome.checkpoints)
    assert "No space left on device" in row["error"]


def test_only_checkpoints_that_are_there_are_logged(outcome: Outcome) -> None:
    """The log has a row for each checkpoint that was written, and for no other."""
    assert [row["step"] for row in rows_of(outcome.root, "checkpoint")] == outcome.saved


def test_earlier_checkpoints_are_intact(outcome: Outcome) -> None:
    """Every checkpoint before the one that failed is whole, and nothing is left of that one."""
    assert outcome.saved == list(range(SAVED_EVERY, outcome.failed_step, SAVED_EVERY))
    assert outcome.failed_step < NUM_STEPS
    store = CheckpointStore(outcome.checkpoints)
    for step in outcome.saved:
        store.verify(step)
    assert list(outcome.checkpoints.glob(".saving-*")) == []


def test_last_good_checkpoint_is_loaded(outcome: Outcome) -> None:
    """A new trainer gets the last checkpoint that was written."""
    trainer = make_trainer(model_class=Wide)
    assert trainer.load_pretrained_model(outcome.checkpoints) == outcome.saved[-1]


def test_rows_before_the_failure_are_in_the_event_file(outcome: Outcome) -> None:
    """No line of the event file is torn, and every step up to the one that could not be saved has its row, once."""
    events = read_events(outcome.root / event_file_name(0))
    steps = [row["step"] for row in events if row["kind"] == "metrics" and row["mode"] == "train"]
    assert events.num_skipped == 0
    assert steps[: outcome.failed_step] == list(range(1, outcome.failed_step + 1))
    assert len(set(steps)) == len(steps)


def test_rows_before_the_failure_are_in_the_tables(outcome: Outcome) -> None:
    """The file logger's table has the same steps as the event file."""
    lines = (outcome.root / "metrics" / "train.csv").read_text().splitlines()
    steps = [int(line.split(",")[0]) for line in lines[1:]]
    assert steps[: outcome.failed_step] == list(range(1, outcome.failed_step + 1))


def test_training_goes_on_after_space_was_freed(disk: Path, tmp_path: Path) -> None:
    """Rerun with room on the disk, the training goes on from its last checkpoint to the very end of another."""
    with contextlib.suppress(CheckpointError):
        train(build(disk / "run"))
    store = CheckpointStore(disk / "run" / "checkpoints")
    last_good = store.steps()[-1]
    store.delete(store.steps()[:-1])
    again, undisturbed = build(disk / "run", save_top_k=1), build(tmp_path / "whole", save_top_k=1)
    train(again)
    train(undisturbed)
    assert rows_of(disk / "run", "status")[-1]["status"] == "success"
    assert store.steps()[-1] == NUM_STEPS > last_good
    jax.tree.map(np.testing.assert_array_equal, again.state.params, undisturbed.state.params)


def test_training_goes_on_without_checkpoints_on_request(disk: Path, tmp_path: Path) -> None:
    """With on_error="warn", a full disk for checkpoints does not keep the training from its end."""
    trainer = build(tmp_path / "run", dirpath=str(disk / "saved"), on_error="warn")
    train(trainer)
    assert (trainer.status, trainer.global_step) == ("success", NUM_STEPS)
    assert trainer.load_pretrained_model(disk / "saved") < NUM_STEPS


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    assert shutil.disk_usage(disk).free == 0


def test_rerun_while_the_disk_is_full(disk: Path) -> None:
    """Run again before there is room, the training ends with an error of ours that names folder and cause."""
    train(build(disk / "run", save_top_k=1))
    fill(disk)
    with pytest.raises(TracksideError, match=rf"(?s){disk}.*No space left on device"):
        build(disk / "run", save_top_k=1).train_model(make_loader(NUM_STEPS), num_epochs=2)
    CheckpointStore(disk / "run" / "checkpoints").verify(NUM_STEPS)


@dataclass
class ReadOnlyConfig(CallbackConfig):
    """Makes a disk read-only in the middle of a training."""

    disk: str = ""

    def create(self, trainer: Any, data_module: Any = None) -> "ReadOnly":
        return ReadOnly(self, trainer, data_module)


class ReadOnly(Callback):
    config: ReadOnlyConfig

    def __init__(self, config: ReadOnlyConfig, trainer: Any = None, data_module: Any = None):
        super().__init__(config, trainer, data_module)
        self.plan = At(9)

    def on_boundary(self, epoch_idx: int, step_idx: int) -> None:
        self.trainer.finish_saving()
        make_read_only(Path(self.config.disk))


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """A training whose disk for checkpoints turns read-only after step 9. Logs are elsewhere."""
    root = tmp_path_factory.mktemp("read-only")
    with mounted(root / "disk") as disk:
        trainer = build(root / "run", 1, (ReadOnlyConfig(disk=str(disk)),), dirpath=str(disk / "saved"))
        yield outcome_of(trainer, disk / "saved")


def test_read_only_disk_ends_the_run_with_the_cause(read_only: Outcome) -> None:
    """The error names the folder and that it is read-only; the run's status is error."""
    assert isinstance(read_only.error, CheckpointError)
    assert str(read_only.checkpoints) in str(read_only.error)
    assert "Read-only file system" in str(read_only.error)
    assert rows_of(read_only.root, "status")[-1]["status"] == "error"


def test_checkpoint_on_a_read_only_disk_is_intact(read_only: Outcome) -> None:
    """The last checkpoint before the disk turned read-only is whole and can be loaded from there."""
    assert read_only.saved == [6, 8]
    assert make_trainer(model_class=Wide).load_pretrained_model(read_only.checkpoints) == 8


def test_rows_are_complete_when_only_checkpoints_fail(read_only: Outcome) -> None:
    """Each step that was trained has its row, also after the disk turned read-only."""
    steps = [row["step"] for row in rows_of(read_only.root, mode="train")]
    assert steps == list(range(1, steps[-1] + 1))
    assert steps[-1] >= 10


FAILING_SAVE = """
import sys
import jax.numpy as jnp
from trackside.trainer.checkpoint_store import CheckpointStore

store = CheckpointStore(sys.argv[1])
store.save(1, {"params": {"a": jnp.arange(10.0)}}, {})
try:
    store.wait()
except Exception as error:
    print("raised", error, flush=True)
"""


@pytest.mark.slow
def test_process_ends_after_a_save_to_a_read_only_disk(disk: Path) -> None:
    """A save whose folder cannot be made leaves nothing behind for which the end of the process has to wait."""
    (disk / "saved").mkdir()
    make_read_only(disk)
    ended = fork_server.run(
        [sys.executable, "-c", FAILING_SAVE, str(disk / "saved")],
        capture_output=True,
        text=True,
        timeout=200,  # a few seconds is what it takes; threads that wait for the folder wait for five minutes
    )
    assert "Read-only file system" in ended.stdout
    assert ended.returncode == 0


def test_training_goes_on_after_the_disk_is_writable_again(disk: Path, tmp_path: Path) -> None:
    """Rerun on a disk that is writable again, the training goes on from its last checkpoint to the end."""
    saved = disk / "saved"
    with contextlib.suppress(CheckpointError):
        train(build(tmp_path / "run", 1, (ReadOnlyConfig(disk=str(disk)),), dirpath=str(saved)))
    make_writable(disk)
    again = build(tmp_path / "run", 1, dirpath=str(saved))
    train(again)
    assert (again.status, CheckpointStore(saved).steps()) == ("success", [NUM_STEPS - 2, NUM_STEPS])


def test_run_folder_on_a_read_only_disk(disk: Path) -> None:
    """A run folder that cannot be written to is an error that names it and the cause, before anything is trained."""
    make_read_only(disk)
    with pytest.raises(ConfigError, match=rf"{disk}.*Read-only file system"):
        build(disk / "run")
