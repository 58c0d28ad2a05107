"""What the loop costs per step, next to hand-written loops.

Steps are tiny (small networks that differ, batch 8, Adam), so that the loop's own cost shows. Everything is at its
default; rows are logged every 50 steps to the run's event file.

    loss only       a jitted step that computes the loss and updates: no norms, no metrics, no rng
    same work       a jitted step with the device work of the trainer's: norms, metric sums, rng
    same program    the trainer's own compiled step in a bare `for`, as many steps in flight as there are
    trackside       the trainer, which fuses such steps
    one by one      the trainer with `steps_per_call=1`
    every step      the trainer, logging each step
    keras fit       Keras 3 on JAX, `verbose=0`: loss only, no norms, no log file

What the difference to "loss only" buys: the norms of gradients and parameters, exact metric sums, a finite check of
every step, a key for every step, and rows on disk.
"""

import argparse
import contextlib
import importlib.util
import io
import logging
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.interleaved import Timing, race
from trackside.logger import LoggerConfig
from trackside.trainer import (
    Batch,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    SchedulerConfig,
    TrainerConfig,
    TrainerModule,
)

LEARNING_RATE = 1e-3


class MLP(nn.Module):
    config: Any = None
    width: int = 64
    depth: int = 1

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        for _ in range(self.depth):
            x = nn.tanh(nn.Dense(self.width)(x))
        return nn.Dense(1)(x)


class WideMLP(MLP):
    width: int = 512
    depth: int = 3


class SwishMLP(nn.Module):
    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        for _ in range(2):
            x = nn.swish(nn.Dense(64)(x))
        return nn.Dense(1)(x)


class GeluMLP(nn.Module):
    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        for _ in range(5):
            x = nn.gelu(nn.Dense(32)(x))
        return nn.Dense(1)(x)


class NormResidual(nn.Module):
    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(x + nn.relu(nn.Dense(64)(nn.LayerNorm()(x))))


SMALL_MODELS = {
    "MLP 64-64-1, tanh": MLP,
    "MLP 64-64-64-1, swish": SwishMLP,
    "MLP of five hidden layers of 32, gelu": GeluMLP,
    "layer norm and residual": NormResidual,
}


class MSETrainer(TrainerModule):
    def loss_function(self, params: Any, apply_fn: Callable, batch: Batch, rng: Any, train: bool = True) -> Any:
        error = (apply_fn({"params": params}, batch.inputs, train=train) - batch.targets) ** 2
        return error.mean(), ({"loss": {"value": error.sum(), "count": error.size}}, None)


def make_batches(batch_size: int, num_features: int, num_batches: int = 64) -> list[Batch]:
    rng = np.random.default_rng(0)
    return [
        Batch(
            rng.standard_normal((batch_size, num_features), np.float32),
            rng.standard_normal((batch_size, 1), np.float32),
        )
        for _ in range(num_batches)
    ]


def global_norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))


def hand_written(model: nn.Module, batches: list[Batch], num_steps: int, full: bool) -> Callable[[], None]:
    """A loop as one writes it by hand: a donated jitted step in a `for`."""
    tx = optax.adam(LEARNING_RATE)

    def loss_of(params: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        error = (model.apply({"params": params}, batch.inputs) - batch.targets) ** 2
        return error.mean(), error.sum()

    def loss_only(state: Any, batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state = state
        (loss, _), grads = jax.value_and_grad(loss_of, has_aux=True)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    def same_work(state: Any, batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state, rng, sums = state
        rng, _ = jax.random.split(rng)
        (loss, total), grads = jax.value_and_grad(loss_of, has_aux=True)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        sums = {
            "loss": sums["loss"] + total,
            "count": sums["count"] + batch.targets.size,
            "grad_norm": sums["grad_norm"] + global_norm(grads),
            "param_norm": sums["param_norm"] + global_norm(params),
        }
        return (params, opt_state, rng, sums), loss

    params = model.init(jax.random.key(0), batches[0].inputs)["params"]
    state: Any = (params, tx.init(params))
    if full:
        zeros = {name: jnp.zeros(()) for name in ("loss", "count", "grad_norm", "param_norm")}
        state = (*state, jax.random.PRNGKey(0), zeros)
    step = jax.jit(same_work if full else loss_only, donate_argnums=0)

    def run() -> None:
        nonlocal state
        loss = None
        for index in range(num_steps):
            state, loss = step(state, batches[index % len(batches)])
        jax.block_until_ready(loss)

    return run


def make_trainer(
    model_class: type,
    batch: Batch,
    log_path: pathlib.Path,
    log_every_n_steps: int,
    trainer_class: type[TrainerModule] | None = None,
    steps_per_call: int | Literal["auto"] = "auto",
) -> Any:
    logger = LoggerConfig(log_path=log_path, log_every_n_steps=log_every_n_steps)
    return (trainer_class or MSETrainer)(
        TrainerConfig(logger=logger, steps_per_call=steps_per_call),
        ModelConfig(model_class=model_class, parallel=ParallelConfig()),
        OptimizerConfig(name="adam", scheduler=SchedulerConfig(name="constant", lr=LEARNING_RATE)),
        batch=batch,
    )


def trainer_run(
    model_class: type,
    batches: list[Batch],
    num_steps: int,
    log_path: pathlib.Path,
    log_every_n_steps: int,
    steps_per_call: int | Literal["auto"] = "auto",
) -> tuple[Callable[[], None], Callable[[], None]]:
    """The trainer, which trains `num_steps` more at each call, and its compiled step without the trainer's loop."""
    trainer = make_trainer(model_class, batches[0], log_path, log_every_n_steps, steps_per_call=steps_per_call)
    epoch = [batches[index % len(batches)] for index in range(num_steps)]

    def run() -> None:
        trainer.train_model(epoch, num_train_steps=trainer.global_step + num_steps)

    layout = trainer.init_train_metrics().layout
    call, progress = trainer.engine.train_call(layout), trainer.progress

    def run_bare() -> None:
        vector = trainer.engine.fresh_vector(layout)
        for batch in epoch:
            progress.carry, vector = call(progress.carry, vector, batch)
        jax.block_until_ready(vector)

    return run, run_bare


def has_keras() -> bool:
    return importlib.util.find_spec("keras") is not None


def keras_fit(batches: list[Batch], num_steps: int) -> Callable[[], None]:
    """A peer: the same model, optimizer and batch size in Keras."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras  # heavy, and only the benchmark needs it

    model = keras.Sequential([keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(LEARNING_RATE), loss="mse")
    inputs = np.concatenate([batches[index % len(batches)].inputs for index in range(num_steps)])
    targets = np.concatenate([batches[index % len(batches)].targets for index in range(num_steps)])

    def run() -> None:
        model.fit(inputs, targets, batch_size=len(batches[0].inputs), shuffle=False, verbose=0)

    return run


def measure(
    model_class: type,
    batch_size: int,
    num_steps: int,
    num_rounds: int,
    with_peer: bool = False,
    on_device: bool = False,
) -> dict[str, Timing]:
    logging.getLogger("trackside").setLevel(logging.ERROR)
    logging.getLogger("trackside").addHandler(logging.NullHandler())
    batches = make_batches(batch_size, 64)
    if on_device:
        batches = [jax.tree.map(jnp.asarray, batch) for batch in batches]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        root = pathlib.Path(folder)
        every_50, _ = trainer_run(model_class, batches, num_steps, root / "a", 50)
        every_1, _ = trainer_run(model_class, batches, num_steps, root / "b", 1)
        one_by_one, _ = trainer_run(model_class, batches, num_steps, root / "d", 50, steps_per_call=1)
        bare_source, bare = trainer_run(model_class, batches, num_steps, root / "c", 50, steps_per_call=1)
        bare_source()  # compiles the step
        contestants = {
            "loss only": hand_written(model_class(), batches, num_steps, full=False),
            "same work": hand_written(model_class(), batches, num_steps, full=True),
            "same program": bare,
            "trackside": every_50,
            "one by one": one_by_one,
            "every step": every_1,
        }
        if with_peer and has_keras():
            contestants["keras fit"] = keras_fit(batches, num_steps)
        return race(contestants, num_steps, num_rounds)


def show(title: str, timings: dict[str, Timing]) -> None:
    print(f"\n{title}")
    print(f"  {'':12} {'best':>10} {'median':>10}   ratio to same work")
    for timing in timings.values():
        ratio = timing.ratio_to(timings["same work"])
        print(f"  {timing.name:12} {timing.best_us:7.1f} us {timing.median_us:7.1f} us   {ratio:.2f}x")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    num_rounds = parser.parse_args(arguments or []).rounds
    for name, model_class in SMALL_MODELS.items():
        for on_device in (False, True):
            where = "batches on the device" if on_device else "numpy batches"
            timings = measure(model_class, 8, num_steps=2000, num_rounds=num_rounds, on_device=on_device)
            show(f"tiny step: {name}, {where}", timings)
    small = measure(MLP, batch_size=8, num_steps=2000, num_rounds=num_rounds, with_peer=True)
    show("tiny step: MLP 64-64-1, batch 8, Adam, log every 50", small)
    if not has_keras():
        print("  keras fit: skipped, because keras is not installed (pip install --group bench)")
    overhead = small["trackside"].overhead_us(small["same work"])
    print(
        f"  overhead of the loop: {overhead:+.1f} us per step, {small['trackside'].ratio_to(small['same work']):.2f}x"
    )
    overhead = small["trackside"].overhead_us(small["same program"])
    print(f"  to its own compiled step in a bare loop: {overhead:+.1f} us per step")
    print(f"  to a loop that computes the loss only: {small['trackside'].ratio_to(small['loss only']):.2f}x")
    print(f"  logging every step against every 50: {small['every step'].ratio_to(small['trackside']):.2f}x")
    large = measure(WideMLP, batch_size=256, num_steps=100, num_rounds=num_rounds)
    show("larger step: MLP 64-512-512-512-1, batch 256", large)


if __name__ == "__main__":
    main(sys.argv[1:])
