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
from trackside.trainer.run_lock import RunLock


def test_second_training_in_a_folder_is_refused(tmp_path: Path) -> None:
    """A folder in which a training runs is refused to a second one with the first one's pid; afterwards it is free."""
    with RunLock(tmp_path), pytest.raises(ConfigError, match=f"pid {os.getpid()}"), RunLock(tmp_path):
        pass
    with RunLock(tmp_path):
        pass


def test_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    """A process that was killed leaves its lock file, and the next one takes the folder over."""
    code = (
        "import os, sys, pathlib; from trackside.trainer.run_lock import RunLock; "
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
        with pytest.raises(ConfigError, match="in use by a training"):
            make_trainer(logger=LoggerConfig(log_path=tmp_path), seed=5)
        assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_checkpoints_elsewhere_are_locked_too(tmp_path: Path) -> None:
    """A folder of checkpoints outside of the run's folder belongs to one training at a time."""
    callback = ModelCheckpoint(CheckpointConfig(dirpath=str(tmp_path / "checkpoints")))
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"))
    with RunLock(tmp_path / "checkpoints"), pytest.raises(ConfigError, match="checkpoints is in use"):
        trainer.fit(make_loader(1), callbacks=[callback])
