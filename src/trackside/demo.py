"""The demo: a small convolutional network learns the handwritten digits that scikit-learn ships.

It trains twice. The first loader is slow, and the run's findings say so; the second one prefetches.
"""

import math
import pathlib
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import flax.linen as nn
import grain
import jax
import numpy as np
import optax
import rich.box
import rich.console
import rich.table

from trackside.callbacks import JaxProfilerConfig
from trackside.compare import compare_runs
from trackside.config import apply_overrides
from trackside.errors import ConfigError
from trackside.findings import render_findings
from trackside.logger import FileLoggerConfig, LoggerConfig, TensorBoardLoggerConfig
from trackside.optional import require
from trackside.report.html import write_html_report
from trackside.run_layout import event_file_name
from trackside.runs import open_run
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
NUM_EPOCHS = 60
FETCH_S = 0.008
NUM_THREADS = 8
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


class DigitsStorage:
    """A data set with a delay per batch, like one on a network file system.

    Args:
        data: The whole data set as one batch.
    """

    def __init__(self, data: Batch):
        self._data = data

    def fetch(self, indices: np.ndarray) -> Batch:
        """Fetch the examples with these indices."""
        time.sleep(FETCH_S)
        return self._data[indices]


def load_digits() -> tuple[Batch, Batch, Batch]:
    """The digits, split for training, validation and test."""
    digits = require("sklearn.datasets", "The demo").load_digits()
    images = (digits.images[..., None] / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    data = Batch(images[order], digits.target[order].astype(np.int32))
    return data[:NUM_TRAIN], data[NUM_TRAIN : NUM_TRAIN + NUM_VAL], data[NUM_TRAIN + NUM_VAL :]


def shuffled(data: Batch, seed: int, num_threads: int) -> Any:
    """An endless stream of shuffled batches.

    Args:
        data: The whole data set as one batch.
        seed: Seed of the order.
        num_threads: How many threads prefetch batches; with 0 the loop waits for each batch.
    """
    indices = grain.MapDataset.range(len(data.targets)).shuffle(seed=seed).repeat()
    batches = indices.batch(BATCH_SIZE).map(DigitsStorage(data).fetch)
    return batches.to_iter_dataset(grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=4 * num_threads))


def in_order(data: Batch) -> list[Batch]:
    """A data set in batches; the last may be smaller."""
    return [data[start : start + BATCH_SIZE] for start in range(0, len(data.targets), BATCH_SIZE)]


def default_configs(run_dir: pathlib.Path) -> dict[str, Any]:
    """The demo's configs, for overrides such as `trainer.seed=1`."""
    tools = [FileLoggerConfig(), TensorBoardLoggerConfig()]
    return {
        "trainer": TrainerConfig(
            logger=LoggerConfig(log_path=run_dir, log_every_n_steps=2, log_tools=tools),
            check_val_every_n_epoch=15,
            callbacks=[JaxProfilerConfig(profile_every_n_minutes=-1, profile_first_step=60, profile_n_steps=10)],
        ),
        "model": ModelConfig(model_class=DigitsNet, parallel=ParallelConfig(data_axis_size=1)),
        "optimizer": OptimizerConfig(
            name="adamw",
            scheduler=SchedulerConfig(name="cosine", lr=3e-3, warmup_steps=20, decay_steps=1200),
            weight_decay=1e-3,
            weight_decay_exclude=["bias"],
        ),
    }


def run(run_dir: pathlib.Path, overrides: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """Train the demo model twice, with a slow loader and with one that prefetches, and print how it went.

    Args:
        run_dir: Where to write the second run and its report; the first run goes to the same path with `-slow`
            appended. Earlier demos there are removed.
        overrides: Changes to the configs, such as `trainer.seed=1`.

    Returns:
        The metrics of the second run.
    """
    configs = apply_overrides(default_configs(run_dir), overrides)
    logger = configs["trainer"].logger
    if logger is None or logger.log_path is None:
        raise ConfigError("trainer.logger.log_path: expected a path, got None; the demo reads the run from disk")
    fast_dir = logger.log_path
    slow_dir = fast_dir.with_name(f"{fast_dir.name}-slow")
    for directory in (slow_dir, fast_dir):
        remove_earlier_run(directory)
    console = rich.console.Console()
    console.rule(f"1. a loader that takes {1e3 * FETCH_S:.0f} ms per batch")
    train(configs, slow_dir, num_threads=0)
    console.rule("2. the same loader with prefetching threads")
    metrics = train(configs, fast_dir, num_threads=NUM_THREADS)
    console.print(tabulate_metrics(metrics))
    print_lessons(console, slow_dir, fast_dir)
    return metrics


def train(configs: dict[str, Any], run_dir: pathlib.Path, num_threads: int) -> dict[str, dict[str, float]]:
    """Train the model from scratch.

    Args:
        configs: Those of trainer, model and optimizer.
        run_dir: Where to write the run.
        num_threads: How many threads prefetch batches.
    """
    training, val, test = load_digits()
    config = replace(configs["trainer"], logger=replace(configs["trainer"].logger, log_path=run_dir))
    trainer = DigitsTrainer(config, configs["model"], configs["optimizer"], batch=training[:BATCH_SIZE])
    return trainer.train_model(
        shuffled(training, config.seed, num_threads),
        in_order(val),
        in_order(test),
        num_epochs=NUM_EPOCHS,
        steps_per_epoch=len(training.targets) // BATCH_SIZE,
    )


def print_lessons(console: rich.console.Console, slow_dir: pathlib.Path, fast_dir: pathlib.Path) -> None:
    """Print what was wrong with the first run and what the second changed, and write the reports of both."""
    slow, fast = open_run(slow_dir), open_run(fast_dir)
    console.rule("what was wrong with the first run")
    console.print(render_findings(slow.findings))
    console.rule("what changed")
    console.print(compare_runs(slow, fast).render(min(console.width, 80)))
    console.rule("what to look at next")
    for name, opened in (("first", slow), ("second", fast)):
        console.print(f"report of the {name:6}  {write_html_report(opened)}", highlight=False, soft_wrap=True)
    console.print(f"in the terminal       {command()} report {fast_dir}", highlight=False, soft_wrap=True)


def command() -> str:
    """What to type for the `trackside` of this environment, which need not be on the path."""
    script = pathlib.Path(sys.executable).with_name("trackside")
    if not script.exists():
        return f"{sys.executable} -m trackside.cli"
    if shutil.which("trackside") == str(script):
        return "trackside"
    return str(script.relative_to(pathlib.Path.cwd()) if script.is_relative_to(pathlib.Path.cwd()) else script)


def remove_earlier_run(run_dir: pathlib.Path) -> None:
    """Make room for a new demo, but never remove anything that does not look like an earlier run."""
    if not run_dir.exists() or (run_dir.is_dir() and not any(run_dir.iterdir())):
        return
    if run_dir.is_symlink() or not (run_dir / event_file_name(0)).exists():
        raise ConfigError(f"run_dir: {run_dir} exists and is not an earlier run; choose another folder")
    shutil.rmtree(run_dir)


def tabulate_metrics(metrics: dict[str, dict[str, float]]) -> rich.table.Table:
    """Loss and accuracy of the best model. An interrupted training has no test."""
    table = rich.table.Table("", box=rich.box.SIMPLE_HEAD)
    for name in ("loss", "accuracy"):
        table.add_column(name, justify="right")
    for split in ("train", "val", "test"):
        values = metrics.get(split, {})
        loss, accuracy = (values.get(name, values.get(f"{name}_mean", math.nan)) for name in ("loss", "accuracy"))
        table.add_row({"val": "validation"}.get(split, split), f"{loss:.4f}", f"{accuracy:.1%}")
    return table
