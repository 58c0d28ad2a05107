"""The demo: a small convolutional network learns the handwritten digits that scikit-learn ships."""

import math
import pathlib
import shutil
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import rich.box
import rich.console
import rich.table

from trackside.callbacks import JaxProfilerConfig
from trackside.config import apply_overrides
from trackside.errors import ConfigError
from trackside.events import event_file_name, read_events
from trackside.logger import FileLoggerConfig, LoggerConfig, TensorBoardLoggerConfig
from trackside.optional import require
from trackside.trainer import (
    Batch,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    SchedulerConfig,
    TrainerConfig,
    TrainerModule,
)

BATCH_SIZE = 64
NUM_EPOCHS = 20
NUM_TRAIN, NUM_VAL = 1285, 256  # validation and test are whole batches, so that evaluation compiles once


class DigitsNet(nn.Module):
    """Two convolutions and two dense layers for 8x8 images."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """The logits of a batch of images."""
        x = nn.relu(nn.Conv(16, (3, 3))(x))
        x = nn.relu(nn.Conv(32, (3, 3), strides=(2, 2))(x))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(64)(x))
        x = nn.Dropout(0.2, deterministic=not train)(x)
        return nn.Dense(10)(x)


class DigitsTrainer(TrainerModule):
    """Cross-entropy and accuracy."""

    def loss_function(self, params: Any, apply_fn: Any, batch: Batch, rng: Any, train: bool = True) -> Any:
        """The mean cross-entropy of a batch."""
        logits = apply_fn({"params": params}, batch.inputs, train=train, rngs={"dropout": rng})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
        hits = logits.argmax(axis=-1) == batch.targets
        metrics = {
            "loss": {"value": losses.sum(), "count": losses.size},
            "accuracy": {"value": hits.sum(), "count": hits.size},
        }
        return losses.mean(), (metrics, None)


class ShuffledBatches:
    """Batches of a data set, in a new order each time.

    Args:
        data: The whole data set as one batch.
        seed: Seed of the order.
    """

    def __init__(self, data: Batch, seed: int):
        self._data = data
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self._data.targets) // BATCH_SIZE

    def __iter__(self) -> Iterator[Batch]:
        order = self._rng.permutation(len(self._data.targets))
        for start in range(0, len(self) * BATCH_SIZE, BATCH_SIZE):
            yield self._data[order[start : start + BATCH_SIZE]]


def load_digits() -> tuple[Batch, Batch, Batch]:
    """The digits, split for training, validation and test."""
    digits = require("sklearn.datasets", "The demo").load_digits()
    images = (digits.images[..., None] / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    data = Batch(images[order], digits.target[order].astype(np.int32))
    return data[:NUM_TRAIN], data[NUM_TRAIN : NUM_TRAIN + NUM_VAL], data[NUM_TRAIN + NUM_VAL :]


def in_order(data: Batch) -> list[Batch]:
    """A data set in batches; the last may be smaller."""
    return [data[start : start + BATCH_SIZE] for start in range(0, len(data.targets), BATCH_SIZE)]


def default_configs(run_dir: pathlib.Path) -> dict[str, Any]:
    """The demo's configs, for overrides such as `trainer.seed=1`."""
    tools = [FileLoggerConfig(), TensorBoardLoggerConfig()]
    return {
        "trainer": TrainerConfig(
            logger=LoggerConfig(log_path=run_dir, log_every_n_steps=10, log_tools=tools),
            callbacks=[JaxProfilerConfig(profile_every_n_minutes=-1, profile_first_step=60, profile_n_steps=10)],
        ),
        "model": ModelConfig(model_class=DigitsNet, parallel=ParallelConfig(data_axis_size=1)),
        "optimizer": OptimizerConfig(
            name="adamw",
            scheduler=SchedulerConfig(name="cosine", lr=3e-3, warmup_steps=20, decay_steps=400),
            weight_decay=1e-3,
            weight_decay_exclude=["bias"],
        ),
    }


def run(run_dir: pathlib.Path, overrides: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """Train the demo model from scratch and print how it went.

    Args:
        run_dir: Where to write the run; an earlier demo there is removed.
        overrides: Changes to the configs, such as `trainer.seed=1`.

    Returns:
        The metrics.
    """
    configs = apply_overrides(default_configs(run_dir), overrides)
    logger = configs["trainer"].logger
    log_path = logger.log_path if logger is not None else None
    if log_path is not None:
        remove_earlier_run(log_path)
    train, val, test = load_digits()
    trainer = DigitsTrainer(configs["trainer"], configs["model"], configs["optimizer"], batch=train[:BATCH_SIZE])
    console = rich.console.Console()
    console.print(trainer.tabulate_params(), highlight=False)
    loader = ShuffledBatches(train, configs["trainer"].seed)
    metrics = trainer.train_model(loader, in_order(val), in_order(test), num_epochs=NUM_EPOCHS)
    console.print(tabulate_metrics(metrics))
    if log_path is not None:
        console.print(describe_speed(log_path))
        console.print(f"The run was written to {log_path}", highlight=False, soft_wrap=True)
    return metrics


def remove_earlier_run(run_dir: pathlib.Path) -> None:
    """Make room for a new demo, and refuse to remove anything that does not look like an earlier one."""
    if not run_dir.exists() or (run_dir.is_dir() and not any(run_dir.iterdir())):
        return
    if run_dir.is_symlink() or not (run_dir / event_file_name(0)).exists():
        raise ConfigError(f"run_dir: {run_dir} exists and is not an earlier run; choose another folder")
    shutil.rmtree(run_dir)


def tabulate_metrics(metrics: dict[str, dict[str, float]]) -> rich.table.Table:
    """Loss and accuracy of the best model. A training that stopped early has no test."""
    table = rich.table.Table("", box=rich.box.SIMPLE_HEAD)
    for name in ("loss", "accuracy"):
        table.add_column(name, justify="right")
    for split in ("train", "val", "test"):
        values = metrics.get(split, {})
        loss, accuracy = (values.get(name, values.get(f"{name}_mean", math.nan)) for name in ("loss", "accuracy"))
        table.add_row({"val": "validation"}.get(split, split), f"{loss:.4f}", f"{accuracy:.1%}")
    return table


def describe_speed(log_path: pathlib.Path) -> str:
    """How long a step took, as the run's event file tells."""
    rows = [row for row in read_events(log_path / event_file_name(0)) if row["kind"] == "metrics"]
    timed = [row for row in rows if row["mode"] == "train" and "step_time" in row["values"]]
    if not timed:
        return "No step was timed."
    median_s = statistics.median(row["values"]["step_time"] for row in timed)
    return f"{timed[-1]['step']} steps, {median_s * 1e3:.2f} ms each, {1 / median_s:.0f} steps per second."
