"""Trainings that witness their own steps, for what is held against the truth."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.idle_truth import SITUATIONS
from benchmarks.witness import STEPS_PER_EPOCH, train


@pytest.fixture
def usual_log() -> Iterator[None]:
    """The log as it was: the benchmark silences it for its process."""
    logger = logging.getLogger("trackside")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.mark.usefixtures("default_compiler", "usual_log")
def test_calls_are_witnessed_where_idle_time_is_told(tmp_path: Path) -> None:
    """Each step of a situation has its begin, its end, and the moment at which its call had returned."""
    witness, _ = train(replace(SITUATIONS[0], num_epochs=1, num_rounds=1), tmp_path / "run")
    assert len(witness.begins_s) == len(witness.ends_s) == len(witness.calls_s) == STEPS_PER_EPOCH
    assert (witness.begins_s <= witness.ends_s).all()
