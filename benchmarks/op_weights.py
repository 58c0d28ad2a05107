"""What elementwise operations cost inside of a vectorised loop, in additions: the weights of `trace/op_costs.py`.

`python -m benchmarks.op_weights [--rounds 40]`

Each is added to a loop that already holds some work, as it would be in a fused kernel; what it adds to the shortest
time of the loop is its cost. The unit is what a multiplication or an addition adds. Weights differ by processor and
compiler; only those that are off by a factor are worth a change.
"""

import argparse
import os
import time
from collections.abc import Callable

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
os.environ["NPROC"] = "1"

import jax
import jax.numpy as jnp
from jax import lax

NUM_ELEMENTS = 1 << 15
NUM_HELD = 4

Work = Callable[[jax.Array], jax.Array]

OPERATIONS: dict[str, tuple[Work, int, int]] = {
    # The operation, how many additions and multiplications keep its argument in range, and how often it is done.
    "add": (lambda x: (x + 0.1) * 0.9, 2, 24),
    "maximum": (lambda x: jnp.maximum(x, 0.3) + 0.01, 1, 24),
    "select": (lambda x: jnp.where(x > 0.5, x + 0.01, 0.4), 2, 16),
    "abs": (lambda x: jnp.abs(x - 0.4) + 0.1, 2, 16),
    "floor": (lambda x: jnp.floor(x * 4.0) * 0.1 + 0.3, 3, 8),
    "round-nearest-even": (lambda x: lax.round(x * 4.0, lax.RoundingMethod.TO_NEAREST_EVEN) * 0.1 + 0.3, 3, 8),
    "sign": (lambda x: jnp.sign(x - 0.4) * 0.2 + 0.5, 3, 8),
    "divide": (lambda x: 0.5 / (x + 0.5), 1, 8),
    "sqrt": (lambda x: jnp.sqrt(x) * 0.9, 1, 8),
    "rsqrt": (lambda x: lax.rsqrt(x + 1.1), 1, 8),
    "exponential": (lambda x: jnp.exp(x - 1.0), 1, 4),
    "exponential-minus-one": (lambda x: jnp.expm1(x) * 0.5, 1, 4),
    "log": (lambda x: jnp.log(x + 1.5), 1, 4),
    "log-plus-one": (lambda x: jnp.log1p(x), 0, 4),
    "tanh": (lambda x: jnp.tanh(x) + 0.1, 1, 4),
    "logistic": (lambda x: jax.nn.sigmoid(x), 0, 4),
    "erf": (lambda x: lax.erf(x) + 0.1, 1, 4),
    "sine": (lambda x: jnp.sin(x) + 0.1, 1, 2),
    "cosine": (lambda x: jnp.cos(x) * 0.9, 1, 2),
    "tan": (lambda x: jnp.tan(x) * 0.5, 1, 2),
    "power": (lambda x: lax.pow(x, jnp.full_like(x, 1.3)) * 0.9 + 0.05, 2, 2),
    "remainder": (lambda x: lax.rem(x + 0.6, jnp.float32(0.97)), 1, 2),
    "atan2": (lambda x: lax.atan2(x, jnp.float32(1.0)) + 0.1, 1, 2),
    "cbrt": (lambda x: lax.cbrt(x) * 0.9, 1, 2),
    "asin": (lambda x: lax.asin(x * 0.5) + 0.2, 2, 2),
    "sinh": (lambda x: lax.sinh(x) * 0.7, 1, 2),
    "convert": (lambda x: (x + 0.01).astype(jnp.float16).astype(jnp.float32), 1, 8),
}


def loop(work: Work, times: int) -> Callable[[], object]:
    """A compiled loop that holds some work, and an operation a number of times."""

    def function(x):
        for _ in range(NUM_HELD):
            x = jnp.tanh(x) + 0.1
        for _ in range(times):
            x = work(x)
        return x

    x, jitted = jnp.linspace(0.2, 0.9, NUM_ELEMENTS), jax.jit(function)
    jitted(x).block_until_ready()
    return lambda: jitted(x).block_until_ready()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what elementwise operations cost inside of a loop.")
    parser.add_argument("--rounds", type=int, default=40)
    num_rounds = parser.parse_args().rounds
    loops = {name: loop(work, times) for name, (work, _, times) in OPERATIONS.items()}
    loops[""] = loop(lambda x: x, 0)
    shortest = dict.fromkeys(loops, float("inf"))
    for _ in range(num_rounds):
        for name, call in loops.items():
            start = time.perf_counter()
            call()
            shortest[name] = min(shortest[name], time.perf_counter() - start)
    added_s = {name: (shortest[name] - shortest[""]) / OPERATIONS[name][2] for name in OPERATIONS}
    unit_s = added_s["add"] / 2
    print(f"one addition: {1e12 * unit_s / NUM_ELEMENTS:.2f} ps per element")
    for name, (_, num_simple, _) in OPERATIONS.items():
        print(f"  {name:22} {added_s[name] / unit_s - num_simple:8.1f}")


if __name__ == "__main__":
    main()
