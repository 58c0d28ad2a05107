"""Captures and runs that several tests compare; made once."""

from pathlib import Path

import pytest

from tests.compare.pairs import capture_step, train
from trackside.callbacks import JAXProfiler, MemoryProfileConfig, MemoryProfiler, ProfilingConfig


@pytest.fixture(scope="module")
def step_capture(tmp_path_factory: pytest.TempPathFactory, no_compile_cache: None) -> Path:
    """The capture that others are compared with."""
    return capture_step(tmp_path_factory.mktemp("captures") / "before")


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory, no_compile_cache: None) -> Path:
    """The run that others are compared with."""
    return train(tmp_path_factory.mktemp("runs") / "plain")


@pytest.fixture(scope="module")
def measured_run(tmp_path_factory: pytest.TempPathFactory, no_compile_cache: None) -> Path:
    """A run with a capture and a timeline of its memory."""
    folder = tmp_path_factory.mktemp("measured")
    profiler = JAXProfiler(ProfilingConfig(log_dir=str(folder / "traces"), start_step=20, end_step=28, on_demand=False))
    memory = MemoryProfiler(MemoryProfileConfig(log_dir=str(folder / "memory"), profile_every_n_steps=20))
    return train(folder / "run", callbacks=[profiler, memory])
