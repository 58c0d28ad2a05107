"""One training per folder: the second is refused before it writes anything, and a dead one holds nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.tiny import make_loader, make_trainer
from trackside.callbacks import CheckpointConfig, ModelCheckpoint
from trackside.errors import ConfigError
from trackside.logger import LoggerConfig
from trackside.measured_run.run_lock import RunLock, check_unlocked


def test_second_training_in_a_folder_is_refused(tmp_path: Path) -> None:
    """A folder in which a training runs is refused to a second one with the first one's pid; afterwards it is free."""
    with RunLock(tmp_path), pytest.raises(ConfigError, match=f"pid {os.getpid()}"), RunLock(tmp_path):
        pass
    with RunLock(tmp_path):
        pass


def test_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    """A process that was killed leaves its lock file, and the next one takes the folder over."""
    code = (
        "import os, sys, pathlib; from trackside.measured_run.run_lock import RunLock; "
        "RunLock(pathlib.Path(sys.argv[1])).__enter__(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert (tmp_path / ".lock").read_text().startswith("pid ")
    with RunLock(tmp_path):
        assert f"pid {os.getpid()}" in (tmp_path / ".lock").read_text()


def test_second_trainer_writes_nothing(tmp_path: Path) -> None:
    """A trainer for a folder in which a training runs is refused when it is built; no file of the run has changed."""
    make_trainer(logger=LoggerConfig(log_path=tmp_path)).logger.finalize("success")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with RunLock(tmp_path):
        with pytest.raises(ConfigError, match="in use by this process"):
            make_trainer(logger=LoggerConfig(log_path=tmp_path), seed=5)
        assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_checkpoints_elsewhere_are_locked_too(tmp_path: Path) -> None:
    """A folder of checkpoints outside of the run's folder belongs to one training at a time."""
    callback = ModelCheckpoint(CheckpointConfig(dirpath=str(tmp_path / "checkpoints")))
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"))
    with RunLock(tmp_path / "checkpoints"), pytest.raises(ConfigError, match="checkpoints is in use"):
        trainer.fit(make_loader(1), callbacks=[callback])


def test_checkpoints_of_a_live_run_are_refused(tmp_path: Path) -> None:
    """The default folder of checkpoints belongs to its run: no other training may name it while the run trains."""
    callback = ModelCheckpoint(CheckpointConfig(dirpath=str(tmp_path / "first" / "checkpoints")))
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "second"))
    with RunLock(tmp_path / "first"), pytest.raises(ConfigError, match="first is in use"):
        trainer.fit(make_loader(1), callbacks=[callback])
    trainer.fit(make_loader(1), callbacks=[callback])


def test_run_whose_checkpoints_another_training_writes_is_refused(tmp_path: Path) -> None:
    """It works the other way round too: the run starts later than the training that borrows its folder."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"))
    with RunLock(tmp_path / "run" / "checkpoints"), pytest.raises(ConfigError, match="checkpoints is in use"):
        trainer.fit(make_loader(1), callbacks=[ModelCheckpoint(CheckpointConfig())])


def test_two_runs_in_one_folder_of_runs(tmp_path: Path) -> None:
    """Checkpoints below a live run's folder, but not in its own, are another training's to keep."""
    callback = ModelCheckpoint(CheckpointConfig(dirpath=str(tmp_path / "sweep" / "trial")))
    with RunLock(tmp_path / "sweep"):
        make_trainer(logger=LoggerConfig(log_path=tmp_path / "run")).fit(make_loader(1), callbacks=[callback])
    assert (tmp_path / "sweep" / "trial" / "1").is_dir()


LOOK = """
import pathlib, sys
from trackside.runs.run_status import is_held
folder = pathlib.Path(sys.argv[1])
print("looking", flush=True)
while True:
    is_held(folder)
"""


def test_readers_do_not_keep_a_training_from_starting(tmp_path: Path) -> None:
    """Whoever looks, as often as they like, at whether a run is alive, no start is refused; a live run still is."""
    with RunLock(tmp_path):
        pass
    readers = [
        subprocess.Popen([sys.executable, "-c", LOOK, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for reader in readers:
            assert reader.stdout is not None
            reader.stdout.readline()
        for _ in range(300):
            check_unlocked(tmp_path)
            with RunLock(tmp_path):
                pass
        with RunLock(tmp_path), pytest.raises(ConfigError, match="in use by this process"), RunLock(tmp_path):
            pass
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()
