"""What timers cost: a pair, a block, either switched off, beside Lightning's SimpleProfiler; and a profiled step.

Each figure is the best of many short rounds, in which all take turns: what is above it is noise of the machine.
"""

import timeit
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.interleaved import race
from trackside.profiling import TrainingProfiler, profile_make_step
from trackside.profiling.statistics_sketch import DurationSketch

NUM_CALLS = 5_000
NUM_ROUNDS = 40
NUM_STEPS = 200
LIMITS_NS = {"pair": 500, "with": 800, "pair, off": 150, "with, off": 150, "record": 200}

PAIR = "start = profiler.start_timer('operation'); profiler.end_timer('operation', start)"
WITH = "with profiler.time('operation'): pass"


def lightning_statements() -> dict[str, timeit.Timer]:
    try:
        from lightning.pytorch.profilers import SimpleProfiler
    except ImportError:
        return {}
    names = {"profiler": SimpleProfiler()}
    return {
        "Lightning, pair": timeit.Timer("profiler.start('operation'); profiler.stop('operation')", globals=names),
        "Lightning, with": timeit.Timer("with profiler.profile('operation'): pass", globals=names),
    }


def measure_timers() -> None:
    on, off, sketch = TrainingProfiler(), TrainingProfiler(enabled=False), DurationSketch()
    statements = {
        "pair": timeit.Timer(PAIR, globals={"profiler": on}),
        "with": timeit.Timer(WITH, globals={"profiler": on}),
        "pair, off": timeit.Timer(PAIR, globals={"profiler": off}),
        "with, off": timeit.Timer(WITH, globals={"profiler": off}),
        "record": timeit.Timer("add(0.00123)", globals={"add": sketch.add}),
        **lightning_statements(),
    }
    best = dict.fromkeys(statements, float("inf"))
    for _ in range(NUM_ROUNDS):
        for name, statement in statements.items():
            best[name] = min(best[name], statement.timeit(NUM_CALLS) / NUM_CALLS * 1e9)
    print(f"timers, best of {NUM_ROUNDS} rounds of {NUM_CALLS:,}")
    for name, nanoseconds in best.items():
        limit = f"  (limit {LIMITS_NS[name]} ns)" if name in LIMITS_NS else ""
        print(f"  {name:16s} {nanoseconds:6.0f} ns{limit}")
    if len(best) == len(LIMITS_NS):
        print("  Lightning        not installed")


def make_step(
    width: int = 128, depth: int = 4, rows: int = 128
) -> tuple[Callable[..., Any], list[jax.Array], jax.Array]:
    def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
        for weights in params:
            x = jnp.tanh(x @ weights)
        return (x**2).mean()

    @jax.jit
    def bench_step(params: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 1e-4 * g, params, grads), value

    keys = jax.random.split(jax.random.key(0), depth)
    params = [jax.random.normal(key, (width, width)) / width for key in keys]
    return bench_step, params, jax.random.normal(jax.random.key(1), (rows, width))


def measure_step() -> None:
    """A jitted step of about a millisecond, profiled and not, in turn. Its first sample is taken before."""
    step, params, x = make_step()
    profiler = TrainingProfiler(log_to_wandb=False, log_every=-1)
    profiled = profile_make_step(step, profiler=profiler)

    def run(chosen: Callable[..., Any]) -> None:
        state = params
        for _ in range(NUM_STEPS):
            state, value = chosen(state, x)
        value.block_until_ready()

    while profiler.not_sampled_yet():
        run(profiled)
        profiler.wait()
    timings = race({"plain": lambda: run(step), "profiled": lambda: run(profiled)}, NUM_STEPS, NUM_ROUNDS)
    plain, on = timings["plain"], timings["profiled"]
    print(f"a jitted step of {plain.median_us:.0f} us, {NUM_ROUNDS} rounds of {NUM_STEPS} in turn")
    print(f"  profiled: {on.ratio_to(plain):.3f}x, {on.overhead_us(plain):+.1f} us per step")


def main() -> None:
    measure_timers()
    measure_step()


if __name__ == "__main__":
    main()
