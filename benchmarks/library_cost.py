"""What a step of each library costs in the trainer, next to one of Linen.

The same network, loss, optimizer and data in every library, with everything at its default and no run folder. Inside
the step all libraries compute the same. What may differ is what crosses jit at each call: its containers are flattened
each time, in C++ if they are plain, in Python otherwise.

    few arrays     MLP 16-16-1, batch 8, Adam: 4 parameter arrays
    many arrays    500 layers of a scale and a shift, SGD: 1,000 parameter arrays

What is compared is the processor time that the training's thread takes for a step, by its lowest round: the loop's own
work, and on a CPU that of tiny programs, too. Other programs disturb it less than the wall time. No library is to take
more than 5 us longer than Linen. On a busy machine that cannot be told of 1,000 arrays, whose step takes milliseconds.
What can be told on any machine is the time to flatten the state, by its lowest of many rounds (`flatten`): all else
that a call does with its arguments depends on the number of arrays only.
"""

import argparse
import contextlib
import io
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks.interleaved import Timing, race
from trackside.trainer import ParallelConfig, Trainer, TrainerConfig, TrainerModule

WIDTH, NUM_LAYERS = 16, 500
MAX_DIFFERENCE_US = 5.0


def loss_fn(model: Any, batch: Any, rng: Any) -> jax.Array:
    return ((model(batch["x"]) - batch["y"]) ** 2).mean()


def loss_of_examples(model: Any, batch: Any, rng: Any) -> jax.Array:
    return ((jax.vmap(model)(batch["x"]) - batch["y"]) ** 2).mean()


# --- few arrays -------------------------------------------------------------------------------------------------------


class LinenMLP(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(1, name="last")(jnp.tanh(nn.Dense(WIDTH, name="first")(x)))


class NnxMLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.last = nnx.Linear(WIDTH, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(jnp.tanh(self.first(x)))


class EquinoxMLP(eqx.Module):
    first: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, key: Any):
        self.first = eqx.nn.Linear(WIDTH, WIDTH, key=key)
        self.last = eqx.nn.Linear(WIDTH, 1, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(jnp.tanh(self.first(x)))


def init_mlp(key: Any, inputs: Any) -> dict[str, Any]:
    return {
        "first": {"kernel": jax.random.normal(key, (WIDTH, WIDTH)) / 4, "bias": jnp.zeros(WIDTH)},
        "last": {"kernel": jax.random.normal(key, (WIDTH, 1)) / 4, "bias": jnp.zeros(1)},
    }


def apply_mlp(params: Any, x: jax.Array) -> jax.Array:
    x = jnp.tanh(x @ params["first"]["kernel"] + params["first"]["bias"])
    return x @ params["last"]["kernel"] + params["last"]["bias"]


FEW = {
    "linen": (LinenMLP(), loss_fn),
    "nnx": (lambda rngs: NnxMLP(rngs), loss_fn),
    "equinox": (lambda key: EquinoxMLP(key), loss_of_examples),
    "functions": ((init_mlp, apply_mlp), loss_fn),
}


# --- many arrays ------------------------------------------------------------------------------------------------------


class LinenScale(nn.Module):
    @nn.compact
    def __call__(self) -> list[jax.Array]:
        return [self.param(name, nn.initializers.ones, (1,)) for name in ("scale", "shift")]


class LinenChain(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return apply_all(x, [LinenScale(name=f"layer_{index}")() for index in range(NUM_LAYERS)])


class NnxScale(nnx.Module):
    def __init__(self) -> None:
        self.scale, self.shift = nnx.Param(jnp.ones(1)), nnx.Param(jnp.ones(1))

    def __call__(self) -> list[jax.Array]:
        return [self.scale[...], self.shift[...]]


class NnxChain(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([NnxScale() for _ in range(NUM_LAYERS)])

    def __call__(self, x: jax.Array) -> jax.Array:
        return apply_all(x, [layer() for layer in self.layers])


class EquinoxScale(eqx.Module):
    scale: jax.Array
    shift: jax.Array

    def __init__(self) -> None:
        self.scale, self.shift = jnp.ones(1), jnp.ones(1)

    def __call__(self) -> list[jax.Array]:
        return [self.scale, self.shift]


class EquinoxChain(eqx.Module):
    layers: list[EquinoxScale]

    def __init__(self, key: Any):
        self.layers = [EquinoxScale() for _ in range(NUM_LAYERS)]

    def __call__(self, x: jax.Array) -> jax.Array:
        return apply_all(x, [layer() for layer in self.layers])


def init_chain(key: Any, inputs: Any) -> dict[str, Any]:
    return {f"layer_{index}": {"scale": jnp.ones(1), "shift": jnp.ones(1)} for index in range(NUM_LAYERS)}


def apply_chain(params: Any, x: jax.Array) -> jax.Array:
    return apply_all(x, [[layer["scale"], layer["shift"]] for layer in params.values()])


def apply_all(x: jax.Array, layers: list[list[jax.Array]]) -> jax.Array:
    """One operation on all parameters, so that the step is cheap to compile."""
    scales, shifts = (jnp.concatenate(arrays) for arrays in zip(*layers, strict=True))
    return x * scales.mean() + shifts.mean()


MANY = {
    "linen": (LinenChain(), loss_fn),
    "nnx": (lambda rngs: NnxChain(rngs), loss_fn),
    "equinox": (lambda key: EquinoxChain(key), loss_of_examples),
    "functions": ((init_chain, apply_chain), loss_fn),
}


# --- measuring --------------------------------------------------------------------------------------------------------


def make_batches(size: int, width: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {"x": rng.standard_normal((size, width), np.float32), "y": rng.standard_normal((size, 1), np.float32)}
        for _ in range(64)
    ]


def build(model: Any, loss: Callable, tx: Any, batch: Any) -> TrainerModule:
    config = TrainerConfig(enable_progress_bar=False)
    return Trainer(model, loss, tx, config=config, parallel=ParallelConfig(data_axis_size=1)).build(batch)


def flatten_us(module: TrainerModule, num_rounds: int = 300) -> float:
    """The time to flatten the state, as each call of the step does."""
    carry, rounds_s = module.progress.carry, []
    for _ in range(num_rounds):
        start = time.perf_counter()
        jax.tree.flatten(carry)
        rounds_s.append(time.perf_counter() - start)
    return min(rounds_s) * 1e6


def trainer_run(module: TrainerModule, batches: list[Any], num_steps: int) -> Callable[[], None]:
    """Trains `num_steps` more at each call."""
    epoch = [batches[index % len(batches)] for index in range(num_steps)]

    def run() -> None:
        module.train_model(epoch, num_train_steps=module.global_step + num_steps)

    return run


def compare(title: str, models: dict[str, Any], tx: Any, batches: list[Any], num_steps: int, num_rounds: int) -> None:
    """Print a table of the libraries."""
    modules = {name: build(model, loss, tx, batches[0]) for name, (model, loss) in models.items()}
    flattening_us = {name: flatten_us(module) for name, module in modules.items()}
    timings: dict[str, Timing] = {}
    if num_rounds:
        runs = {name: trainer_run(module, batches, num_steps) for name, module in modules.items()}
        with contextlib.redirect_stderr(io.StringIO()):
            timings = race(runs, num_steps, num_rounds, time.thread_time)
    print(f"\n{title}")
    print(f"  {'':10} {'flatten':>10} {'to Linen':>9}   {'step':>10} {'median':>10} {'to Linen':>9}")
    for name, own_us in flattening_us.items():
        line = f"  {name:10} {own_us:7.1f} us {_difference(own_us - flattening_us['linen'])}"
        if timings:
            best_us, difference_us = timings[name].best_us, timings[name].best_us - timings["linen"].best_us
            line += f"   {best_us:7.1f} us {timings[name].median_us:7.1f} us {_difference(difference_us)}"
        print(line)


def _difference(difference_us: float) -> str:
    return f"{difference_us:+6.1f} us{' OVER' if difference_us > MAX_DIFFERENCE_US else ''}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of steps; 0 measures the flattening only")
    num_rounds = parser.parse_args(arguments or []).rounds
    logging.getLogger("trackside").setLevel(logging.ERROR)
    logging.getLogger("trackside").addHandler(logging.NullHandler())
    few, many = make_batches(8, WIDTH), make_batches(2, 1)
    compare("4 parameter arrays", FEW, optax.adam(1e-3), few, 1000, num_rounds)
    compare("1,000 parameter arrays", MANY, optax.sgd(1e-6), many, 200, num_rounds)


if __name__ == "__main__":
    main(sys.argv[1:])
