"""What a step takes in a loop of one's own: bare, measured, and with several steps in a call (`fuse_steps`).

bare         a jitted step, called for each batch
measured     the same in `trackside.run`, with a logged loss for each step
fused        `fuse_steps`, measured, with a logged loss for each step
fused, bare  `fuse_steps` without a run

python -m benchmarks.fused_own_loop [--layers N ...] [--steps-per-call K] [--rounds N]
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import trackside
from benchmarks.interleaved import race

NUM_STEPS = 4000
WIDTH, BATCH_SIZE = 64, 8
BATCHES = [
    (inputs, inputs[:, :1] ** 2)
    for inputs in np.random.default_rng(0).standard_normal((64, BATCH_SIZE, WIDTH), np.float32)
]


def build(num_layers: int) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """A jitted step of an MLP, and what makes its first state."""
    tx = optax.adam(1e-3)
    sizes = [WIDTH] * (num_layers + 1) + [1]

    def loss_of(params: Any, batch: Any) -> jax.Array:
        outputs = batch[0]
        for weights, bias in params[:-1]:
            outputs = jax.nn.swish(outputs @ weights + bias)
        return ((outputs @ params[-1][0] + params[-1][1] - batch[1]) ** 2).mean()

    def train_step(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    def begin() -> Any:
        keys = jax.random.split(jax.random.key(0), len(sizes))
        shapes = zip(keys[1:], sizes[:-1], sizes[1:], strict=True)
        params = [(jax.random.normal(key, (a, b)) / a**0.5, jnp.zeros(b)) for key, a, b in shapes]
        return params, tx.init(params)

    return jax.jit(train_step, donate_argnums=(0, 1)), begin


def contestants(num_layers: int, steps_per_call: int, folder: Path) -> dict[str, Callable[[], None]]:
    """The loops, by name. Each call starts from the first state."""
    step, begin = build(num_layers)
    fused = trackside.fuse_steps(step, steps_per_call, donate=True)
    loader = [BATCHES[at % len(BATCHES)] for at in range(NUM_STEPS)]
    groups = [loader[at : at + steps_per_call] for at in range(0, NUM_STEPS, steps_per_call)]

    def bare(call: Callable[..., Any], given: list[Any]) -> None:
        params, opt_state = begin()
        loss = None
        for batch in given:
            params, opt_state, loss = call(params, opt_state, batch)
        jax.block_until_ready(loss)

    def measured(call: Callable[..., Any], **options: Any) -> None:
        with trackside.run(folder / "run", progress=False) as run:
            made, (params, opt_state) = run.step(call), begin()
            for batch in run.batches(loader, **options):
                params, opt_state, loss = made(params, opt_state, batch)
                run.log(loss=loss)

    return {
        "bare": lambda: bare(step, loader),
        "measured": lambda: measured(step),
        "fused": lambda: measured(fused, steps_per_call=steps_per_call),
        "fused, bare": lambda: bare(fused, groups),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--steps-per-call", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args(arguments or [])
    logging.getLogger("trackside").setLevel(logging.ERROR)
    print(f"loops of one's own, us per step, {chosen.steps_per_call} steps in a call: medians, and best rounds")
    for num_layers in chosen.layers:
        with tempfile.TemporaryDirectory() as folder:
            timings = race(contestants(num_layers, chosen.steps_per_call, Path(folder)), NUM_STEPS, chosen.rounds)
        cells = (f"{name} {one.median_us:6.1f} ({one.best_us:.1f})" for name, one in timings.items())
        print(f"  {num_layers} layers   " + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
