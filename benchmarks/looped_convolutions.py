"""What a training step with convolutions takes in a loop on a CPU, for kinds of convolutions.

single       a jitted step, called for each batch
looped       the same step as the body of a loop over stacked batches, as written
fast order   the same loop, with the convolutions in the order of dimensions for which XLA has fast kernels

python -m benchmarks.looped_convolutions [--kinds KIND ...] [--batch-size N] [--rounds N]
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.interleaved import race
from trackside.fusing.looped_convolutions import in_fast_order

NUM_STEPS = 32
Layer = Callable[[], nn.Module]


class ConvolutionNet(nn.Module):
    """Convolutions and a dense layer."""

    layers: tuple[Layer, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = nn.relu(layer()(x))
        return nn.Dense(10)(x.reshape(len(x), -1))


KINDS: dict[str, tuple[tuple[int, ...], tuple[Layer, ...]]] = {
    "1d": ((64, 1), (lambda: nn.Conv(16, (5,)), lambda: nn.Conv(32, (3,), strides=2))),
    "2d": ((8, 8, 1), (lambda: nn.Conv(16, (3, 3)), lambda: nn.Conv(32, (3, 3), strides=2))),
    "3d": ((6, 6, 6, 1), (lambda: nn.Conv(8, (3, 3, 3)), lambda: nn.Conv(8, (3, 3, 3), strides=2))),
    "dilated": ((8, 8, 1), (lambda: nn.Conv(16, (3, 3)), lambda: nn.Conv(16, (3, 3), kernel_dilation=2))),
    "transposed": (
        (8, 8, 1),
        (lambda: nn.Conv(8, (3, 3), strides=2), lambda: nn.ConvTranspose(8, (3, 3), strides=(2, 2))),
    ),
    "depthwise": (
        (8, 8, 1),
        (lambda: nn.Conv(16, (3, 3)), lambda: nn.Conv(16, (3, 3), feature_group_count=16)),
    ),
    "grouped": ((8, 8, 1), (lambda: nn.Conv(16, (3, 3)), lambda: nn.Conv(16, (3, 3), feature_group_count=4))),
    "larger": ((16, 16, 3), (lambda: nn.Conv(32, (3, 3)), lambda: nn.Conv(64, (3, 3), strides=2))),
}
"""By name, the shape of an example and the layers."""


def contestants(kind: str, batch_size: int) -> dict[str, Callable[[], None]]:
    """The ways to make the steps, by name."""
    shape, layers = KINDS[kind]
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((NUM_STEPS, batch_size, *shape), np.float32)
    targets = rng.integers(0, 10, (NUM_STEPS, batch_size)).astype(np.int32)
    batches = list(zip(inputs, targets, strict=True))
    model, tx = ConvolutionNet(layers), optax.adam(1e-3)
    params = model.init(jax.random.key(0), inputs[0])["params"]
    begin = params, tx.init(params)

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state

        def loss_of(params: Any) -> jax.Array:
            outputs = model.apply({"params": params}, batch[0])
            return optax.softmax_cross_entropy_with_integer_labels(outputs, batch[1]).mean()

        updates, opt_state = tx.update(jax.grad(loss_of)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    jitted = jax.jit(step)

    def single() -> None:
        state = begin
        for batch in batches:
            state = jitted(state, batch)
        jax.block_until_ready(state)

    looped, in_order = _looped(step), _looped(in_fast_order(step))
    return {
        "single": single,
        "looped": lambda: jax.block_until_ready(looped(begin, NUM_STEPS, (inputs, targets))),
        "fast order": lambda: jax.block_until_ready(in_order(begin, NUM_STEPS, (inputs, targets))),
    }


def _looped(step: Callable[[Any, Any], Any]) -> Callable[[Any, int, Any], Any]:
    """A program that makes a given number of steps."""

    def run(state: Any, num_steps: int, batches: Any) -> Any:
        def make_step(loop: tuple) -> tuple:
            index, state = loop
            return index + 1, step(state, jax.tree.map(lambda leaf: leaf[index], batches))

        return jax.lax.while_loop(lambda loop: loop[0] < num_steps, make_step, (jnp.int32(0), state))[1]

    return jax.jit(run)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args(arguments or [])
    print(f"convolutions in a loop, us per step, batches of {chosen.batch_size}: medians, and best rounds in brackets")
    for kind in chosen.kinds:
        timings = race(contestants(kind, chosen.batch_size), NUM_STEPS, chosen.rounds)
        cells = (f"{name} {one.median_us:8,.0f} ({one.best_us:,.0f})" for name, one in timings.items())
        print(f"  {kind:12}" + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
