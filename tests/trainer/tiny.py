"""A model that is small enough to compile in no time, and trainers for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from trackside.events import read_events
from trackside.run_layout import event_file_name
from trackside.trainer import (
    Batch,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    SchedulerConfig,
    TrainerConfig,
    TrainerModule,
)

WEIGHTS = np.array([[1.0], [-2.0], [0.5], [3.0]], np.float32)


class Linear(nn.Module):
    """One dense layer."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(x)


class MSETrainer(TrainerModule):
    """Mean squared error, and the hooks that were called, in order."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.calls: list[str] = []
        super().__init__(*args, **kwargs)

    def loss_function(self, params: Any, apply_fn: Callable, batch: Batch, rng: Any, train: bool = True) -> Any:
        pred = apply_fn({"params": params}, batch.inputs, train=train)
        error = (pred - batch.targets) ** 2
        return error.mean(), ({"loss": {"value": error.sum(), "count": error.size}}, None)


def make_batch(size: int, seed: int = 0) -> Batch:
    inputs = np.random.default_rng(seed).standard_normal((size, 4), np.float32)
    return Batch(inputs, inputs @ WEIGHTS)


def make_loader(num_batches: int, size: int = 8, seed: int = 0) -> list[Batch]:
    return [make_batch(size, seed + index) for index in range(num_batches)]


def make_trainer(
    trainer_class: type[TrainerModule] = MSETrainer,
    model_class: type = Linear,
    batch: Any = None,
    parallel: ParallelConfig | None = None,
    lr: float = 0.1,
    optimizer: str = "sgd",
    **config: Any,
) -> Any:
    """A trainer on one device, without a progress bar, unless told otherwise."""
    config = {"enable_progress_bar": False, **config}
    return trainer_class(
        TrainerConfig(**config),
        ModelConfig(model_class=model_class, parallel=parallel or ParallelConfig(data_axis_size=1)),
        OptimizerConfig(name=optimizer, scheduler=SchedulerConfig(name="constant", lr=lr)),
        batch=make_batch(8) if batch is None else batch,
    )


def rows_of(log_path: Path, kind: str = "metrics", mode: str | None = None) -> list[dict[str, Any]]:
    """The rows of a run's event file."""
    rows = [row for row in read_events(log_path / event_file_name(0)) if row["kind"] == kind]
    return rows if mode is None else [row for row in rows if row["mode"] == mode]
