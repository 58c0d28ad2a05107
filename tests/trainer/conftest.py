"""Fixtures of the trainer's tests."""

from pathlib import Path

import pytest

from trackside.logger import LoggerConfig


@pytest.fixture
def run_config(tmp_path: Path) -> LoggerConfig:
    """A logger that writes each step's row to the event file."""
    return LoggerConfig(log_path=tmp_path / "run", log_every_n_steps=1)
