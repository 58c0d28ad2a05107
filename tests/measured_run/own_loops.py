"""Small loops of a user's own, for tests."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trackside.clock import Clock, ManualClock
from trackside.events import read_events
from trackside.logger import LoggerConfig
from trackside.measured_run import MeasuredRun
from trackside.run_layout import event_file_name


def step_of(donates: bool = True) -> Any:
    """A jitted training step on `(weights, batch)` that gives the new weights and the loss."""

    def train_step(weights: jax.Array, batch: Any) -> tuple[jax.Array, jax.Array]:
        x, y = batch
        loss, grad = jax.value_and_grad(lambda weights: jnp.mean((x @ weights - y) ** 2))(weights)
        return weights - 0.1 * grad, loss

    return functools.partial(jax.jit, donate_argnums=0 if donates else ())(train_step)


def make_loader(num_batches: int = 4, batch_size: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches that differ."""
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=(batch_size, 2)).astype(np.float32), rng.normal(size=batch_size).astype(np.float32))
        for _ in range(num_batches)
    ]


def weights() -> jax.Array:
    """The weights to begin with."""
    return jnp.zeros(2)


def open_run_of(path: Path | None = None, clock: Clock | None = None, **kwargs: Any) -> MeasuredRun:
    """A run on a clock that moves only when it is told to."""
    run = MeasuredRun(LoggerConfig(log_path=path), clock=ManualClock() if clock is None else clock, **kwargs)
    run._host._process_time = lambda: 0.0  # nor does it compute meanwhile
    return run


def rows_of(run: MeasuredRun, kind: str, **fields: Any) -> list[dict[str, Any]]:
    """The rows of a kind that a run has written, with these fields."""
    assert run.path is not None
    rows = [row for row in read_events(run.path / event_file_name(0)) if row["kind"] == kind]
    return [row for row in rows if all(row.get(name) == value for name, value in fields.items())]
