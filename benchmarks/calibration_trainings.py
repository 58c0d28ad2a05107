"""The trainings that `benchmarks.compare_calibration` compares: programs, and the same ones with more work.

`tower` has layers that share their weights and run in one loop on the device, kept on one core. `mlp` has small layers
with separate weights, and `wide` large ones that are computed on all cores. `loader` waits for its batches. What is
added to a program makes its step about 10 and 25 % longer; about, since a part of the step is not what was multiplied.
"""

import argparse
import contextlib
import io
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax

from benchmarks.loop_overhead import MSETrainer, make_batches
from trackside.logger import LoggerConfig
from trackside.trainer import Batch, ModelConfig, OptimizerConfig, ParallelConfig, SchedulerConfig, TrainerConfig

WIDTH = 64
BATCH_SIZE = 32
WORK = {
    "tower": {"first": 44, "second": 44, "slowed10": 49, "slowed25": 56},
    "mlp": {"first": 20, "second": 20, "slowed10": 22, "slowed25": 25},
    "wide": {"first": 20, "second": 20, "slowed10": 22, "slowed25": 25},
    "loader": {"first": 15, "second": 15, "slowed10": 17, "slowed25": 20},
}
"""How many layers a program has; of `loader`, how many tenths of a millisecond a batch takes."""


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return nn.tanh(nn.Dense(WIDTH)(x)), None


class Tower(nn.Module):
    """As many layers as `config` says, with the weights of one."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        repeated = nn.scan(Layer, variable_broadcast="params", split_rngs={"params": False}, length=self.config)
        x, _ = repeated()(x, None)
        return nn.Dense(1)(x)


class Perceptron(nn.Module):
    """As many layers of a width as `config` says."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        num_layers, width = self.config
        for _ in range(num_layers):
            x = nn.tanh(nn.Dense(width)(x))
        return nn.Dense(1)(x)


class Loader:
    """Batches, each of which takes a while."""

    def __init__(self, batches: list[Batch], delay_s: float):
        self._batches = batches
        self._delay_s = delay_s

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            if self._delay_s:
                time.sleep(self._delay_s)
            yield batch


def train(run_dir: pathlib.Path, kind: str, work: int, num_steps: int) -> None:
    """Train a program; the run is in its folder."""
    batches = make_batches(2 * BATCH_SIZE if kind == "wide" else BATCH_SIZE, WIDTH)
    epoch = [batches[index % len(batches)] for index in range(num_steps)]
    model_class = Tower if kind == "tower" else Perceptron
    configs = {"tower": work, "mlp": (work, WIDTH), "wide": (work, 4 * WIDTH), "loader": (2, WIDTH)}
    trainer = MSETrainer(
        TrainerConfig(logger=LoggerConfig(log_path=run_dir, log_every_n_steps=1), enable_progress_bar=False),
        ModelConfig(
            model_class=model_class,
            parallel=ParallelConfig(data_axis_size=1),
            model_config=configs[kind],
        ),
        OptimizerConfig(name="adam", scheduler=SchedulerConfig(name="constant", lr=1e-3)),
        batch=batches[0],
    )
    with contextlib.redirect_stderr(io.StringIO()):
        trainer.train_model(Loader(epoch, work * 1e-4 if kind == "loader" else 0.0), num_train_steps=num_steps)


def main() -> None:
    """Train several programs one after the other; the folder of each appears under its name when it is complete."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--core", type=int)
    parser.add_argument("--kind", choices=list(WORK), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help="named after the pair and the program")
    options = parser.parse_args()
    # Compiling takes longer than training does: what another process has compiled is not compiled again.
    jax.config.update("jax_compilation_cache_dir", str(options.runs[0].parent / ".compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    for run_dir in options.runs:
        unfinished = run_dir.with_name(f".{run_dir.name}-{os.getpid()}")
        train(unfinished, options.kind, WORK[options.kind][run_dir.name.split("-")[-1]], options.steps)
        unfinished.rename(run_dir)


if __name__ == "__main__":
    if "--core" in sys.argv:  # before anything of jax starts its threads
        os.sched_setaffinity(0, {int(sys.argv[sys.argv.index("--core") + 1])})
    main()
