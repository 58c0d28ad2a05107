"""What timers cost: a pair, a block, either switched off, beside Lightning's SimpleProfiler; and a profiled step.

Each figure is the best of many short rounds, in which all take turns: what is above it is noise of the machine. How
fast the machine is stands beside it, as four readings of the clock. Lightning takes part where it is installed.
"""

import importlib
import importlib.metadata
import time
import timeit
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.interleaved import race
from trackside.profiling import TrainingProfiler, profile_make_step
from trackside.profiling.timers.durations import MAX_PENDING, DurationSketch

NUM_CALLS = 2 * MAX_PENDING
"""So that taking the records in has its part in each round."""
NUM_TIMER_ROUNDS = 200
NUM_ROUNDS = 40
NUM_STEPS = 200
LIMITS_NS = {"pair": 500, "with": 800, "pair, off": 150, "with, off": 150, "record": 200}

PAIR = "start = profiler.start_timer('operation'); profiler.end_timer('operation', start)"
WITH = "with profiler.time('operation'): pass"
REFERENCE = "now(); now(); now(); now()"
LIGHTNING_PAIR = "profiler.start('operation'); profiler.stop('operation')"
LIGHTNING_WITH = "with profiler.profile('operation'): pass"

LIGHTNING_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The names under which Lightning is installed."""
WITHOUT_LIGHTNING = (
    "SimpleProfiler skipped: Lightning is not installed. Its `with profile(...)` took 1,260 ns when it was measured\n"
    "  earlier, on a machine with 2 cores where two readings of the clock took 129 ns; the version was not noted"
)


def find_lightning() -> tuple[Any, str] | None:
    """Lightning's profiler, and which version it is of; None where it is not installed."""
    for package in LIGHTNING_PACKAGES:
        distribution = package.partition(".")[0]
        try:
            profilers = importlib.import_module(f"{package}.profilers")
        except ModuleNotFoundError as error:
            if error.name != distribution:
                raise  # it is installed, and something that it needs is not
            continue
        return profilers.SimpleProfiler(), f"{distribution} {importlib.metadata.version(distribution)}"
    return None


def timer_statements(lightning: Any | None) -> dict[str, timeit.Timer]:
    on, off = {"profiler": TrainingProfiler()}, {"profiler": TrainingProfiler(enabled=False)}
    statements = {
        "reference": timeit.Timer(REFERENCE, globals={"now": time.perf_counter}),
        "pair": timeit.Timer(PAIR, globals=on),
        "with": timeit.Timer(WITH, globals=on),
        "pair, off": timeit.Timer(PAIR, globals=off),
        "with, off": timeit.Timer(WITH, globals=off),
        "record": timeit.Timer("add(0.00123)", globals={"add": DurationSketch().add}),
    }
    if lightning is not None:
        statements["lightning, pair"] = timeit.Timer(LIGHTNING_PAIR, globals={"profiler": lightning})
        statements["lightning, with"] = timeit.Timer(LIGHTNING_WITH, globals={"profiler": lightning})
    return statements


def measure_timers() -> None:
    found = find_lightning()
    lightning, version = found or (None, "")
    statements = timer_statements(lightning)
    best = dict.fromkeys(statements, float("inf"))
    for _ in range(NUM_TIMER_ROUNDS):
        for name, statement in statements.items():
            best[name] = min(best[name], statement.timeit(NUM_CALLS) / NUM_CALLS * 1e9)
        if lightning is not None:
            lightning.recorded_durations.clear()  # or all that comes after would run in a memory full of numbers
    print(f"timers, best of {NUM_TIMER_ROUNDS} rounds of {NUM_CALLS:,}")
    for name, nanoseconds in best.items():
        limit = f"  (limit {LIMITS_NS[name]} ns)" if name in LIMITS_NS else ""
        print(f"  {name:16s} {nanoseconds:6.0f} ns  {nanoseconds / best['reference']:5.2f} x reference{limit}")
    print(f"  SimpleProfiler of {version}" if version else f"  {WITHOUT_LIGHTNING}")


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
