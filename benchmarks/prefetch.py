"""What reading a loader ahead gains: time per step with and without, next to the best that one thread can reach.

A step takes about 5 ms, a batch 0 to 20 ms, made by sleeping (as one who waits for a disk does) or by computing in
numpy. Ideal is whatever takes longer, the step or the batch. The device is played by a step that sleeps, since a CPU
that computes both steps and batches has nothing to overlap; `--compute` lets the step compute instead. All take turns.

    python -m benchmarks.prefetch [--compute] [--rounds N] [--steps N]
"""

import argparse
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.interleaved import race
from trackside.trainer import (
    Batch,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    SchedulerConfig,
    TrainerConfig,
    TrainerModule,
)

STEP_S = 5e-3
DELAYS_S = (0.0, 3e-3, 5e-3, 8e-3, 20e-3)
NUM_AHEAD = 2
BATCH = Batch(np.ones((32, 64), np.float32), np.ones((32, 1), np.float32))


class MLP(nn.Module):
    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(nn.tanh(nn.Dense(64)(x)))


class Sleeping(TrainerModule):
    """A step that takes its time without computing."""

    def loss_function(self, params: Any, apply_fn: Callable, batch: Batch, rng: Any, train: bool = True) -> Any:
        loss = ((apply_fn({"params": params}, batch.inputs, train=train) - batch.targets) ** 2).mean()
        slept = jax.pure_callback(_sleep, jax.ShapeDtypeStruct((), np.float32), batch.inputs[0, 0])
        return loss + 0.0 * slept, ({}, None)


def _sleep(_: Any) -> np.float32:
    time.sleep(STEP_S)
    return np.float32(0)


class Computing(TrainerModule):
    """A step that computes on one core."""

    def loss_function(self, params: Any, apply_fn: Callable, batch: Batch, rng: Any, train: bool = True) -> Any:
        loss = ((apply_fn({"params": params}, batch.inputs, train=train) - batch.targets) ** 2).mean()
        waves = jnp.linspace(0.0, 1.0, 100_000) * batch.inputs[0, 0]
        waves = jax.lax.fori_loop(0, 6, lambda _, x: jnp.sin(x) + 0.1, waves)
        return loss + 0.0 * waves.sum(), ({}, None)


class Loader:
    """Batches that take a while."""

    def __init__(self, num_batches: int, delay_s: float, make: Callable[[float], None]):
        self.num_batches, self.delay_s, self.make = num_batches, delay_s, make

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.num_batches):
            if self.delay_s:
                self.make(self.delay_s)
            yield BATCH


def compute(delay_s: float) -> None:
    """Compute in numpy for a time of this thread."""
    numbers = np.ones(50_000)
    end_s = time.thread_time() + delay_s
    while time.thread_time() < end_s:
        np.sin(numbers)


def make_training(trainer_class: type[TrainerModule], loader: Loader, num_ahead: int) -> Callable[[], None]:
    trainer = trainer_class(
        TrainerConfig(enable_progress_bar=False, logger=None, steps_per_call=1, prefetch_batches=num_ahead),
        ModelConfig(model_class=MLP, parallel=ParallelConfig(data_axis_size=1)),
        OptimizerConfig(name="sgd", scheduler=SchedulerConfig(name="constant", lr=1e-3)),
        batch=BATCH,
    )
    num_epochs = 0

    def train() -> None:
        nonlocal num_epochs
        num_epochs += 1
        trainer.train_model(loader, num_epochs=num_epochs)

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compute", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    trainer_class = Computing if args.compute else Sleeping
    contestants = {
        f"{name} {delay_s * 1e3:g} {num_ahead}": make_training(
            trainer_class, Loader(args.steps, delay_s, make), num_ahead
        )
        for name, make in (("sleeps", time.sleep), ("computes", compute))
        for delay_s in DELAYS_S
        for num_ahead in (0, NUM_AHEAD)
    }
    timings = race(contestants, args.steps, args.rounds)
    print(f"{'loader':<10}{'ms/batch':>10}{'ideal ms':>10}{'without':>10}{f'{NUM_AHEAD} ahead':>10}{'over ideal':>12}")
    for name in ("sleeps", "computes"):
        step_ms = timings[f"{name} 0 0"].median_us / 1e3
        for delay_s in DELAYS_S:
            without, ahead = (timings[f"{name} {delay_s * 1e3:g} {num}"].median_us / 1e3 for num in (0, NUM_AHEAD))
            ideal = max(step_ms, delay_s * 1e3)
            print(
                f"{name:<10}{delay_s * 1e3:>10g}{ideal:>10.2f}{without:>10.2f}{ahead:>10.2f}{ahead / ideal - 1:>11.0%}"
            )


if __name__ == "__main__":
    main()
