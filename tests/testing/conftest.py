"""A training and captured functions that several assertions look at; made once."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests.compare.pairs import train
from trackside.callbacks import JAXProfiler, MemoryProfileConfig, MemoryProfiler, ProfilingConfig
from trackside.testing import capture_function
from trackside.trace import TraceReport


def two_scopes(x: jax.Array) -> jax.Array:
    """Most of the work is in one scope."""
    with jax.named_scope("heavy"):
        for _ in range(8):
            x = jnp.tanh(x @ x)
    with jax.named_scope("light"):
        return x + 1.0


@pytest.fixture(scope="module")
def captured(no_compile_cache: None) -> TraceReport:
    return capture_function(jax.jit(two_scopes), jnp.full((128, 128), 0.01), num_steps=5)


@pytest.fixture(scope="module")
def measured_run(tmp_path_factory: pytest.TempPathFactory, no_compile_cache: None) -> Path:
    """A run with a capture, a timeline of its memory, and a recompile."""
    folder = tmp_path_factory.mktemp("measured")
    profiler = JAXProfiler(ProfilingConfig(log_dir=str(folder / "traces"), start_step=20, end_step=28, on_demand=False))
    memory = MemoryProfiler(MemoryProfileConfig(log_dir=str(folder / "memory"), profile_every_n_steps=20))
    return train(folder / "run", batch_sizes=(8, 7), callbacks=[profiler, memory])
