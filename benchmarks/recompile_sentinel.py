"""What the recompile sentinel costs per call while nothing compiles, for arguments of few and of many leaves.

    plain       the function
    watched     the same through `RecompileSentinel.watch`
    compared    the same in a loop that compares the counter around the call, as the training loop does

The jitted function does next to nothing on the device. What counts is the processor time of the calling thread: on a
busy machine wall time varies by more than the sentinel costs. JAX itself takes time for each leaf, which varies too, so
a Python function that does nothing is measured as well.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.interleaved import Timing
from trackside.events import NullEventWriter
from trackside.profiling.compiles import compile_counter
from trackside.profiling.sentinel import RecompileSentinel

LIMIT_US = 1.0


def add_one(params: dict[str, Any]) -> Any:
    return params["leaf_0"] + np.float32(1)


def do_nothing(params: dict[str, Any]) -> Any:
    return params


def call_repeatedly(function: Callable, params: Any, num_calls: int) -> None:
    for _ in range(num_calls):
        result = function(params)
    jax.block_until_ready(result)


def call_compared(function: Callable, params: Any, num_calls: int) -> None:
    counter = compile_counter()
    for _ in range(num_calls):
        num_events = counter.num_events
        result = function(params)
        if counter.num_events != num_events:
            raise AssertionError("nothing should compile here")
    jax.block_until_ready(result)


def race_by_cpu_time(contestants: dict[str, Callable], num_calls: int, num_rounds: int) -> dict[str, Timing]:
    """Run each contestant once per round, in alternating order."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for round_index in range(num_rounds):
        for name in list(contestants) if round_index % 2 else list(reversed(contestants)):
            start = time.thread_time()
            contestants[name]()
            seconds[name].append((time.thread_time() - start) / num_calls)
    return {name: Timing(name, tuple(values)) for name, values in seconds.items()}


def measure(kind: str, function: Callable, num_leaves: int, num_calls: int, num_rounds: int) -> None:
    params = {f"leaf_{at}": jax.device_put(np.zeros(1, np.float32)) for at in range(num_leaves)}
    watched = RecompileSentinel(NullEventWriter()).watch(function)
    watched(params)
    contestants = {
        "plain": functools.partial(call_repeatedly, function, params, num_calls),
        "watched": functools.partial(call_repeatedly, watched, params, num_calls),
        "compared": functools.partial(call_compared, function, params, num_calls),
    }
    timings = race_by_cpu_time(contestants, num_calls, num_rounds)
    plain = timings["plain"]
    print(f"  {kind}, {num_leaves:4} leaves: plain {plain.median_us:7.2f} us per call", end="")
    for name in ("watched", "compared"):
        best = timings[name].best_us - plain.best_us
        print(f", {name} {timings[name].overhead_us(plain):+.2f} us (best rounds {best:+.2f})", end="")
    print()


def main() -> None:
    num_rounds = 201
    print(f"recompile sentinel: medians of {num_rounds} interleaved rounds; watching may cost {LIMIT_US} us per call")
    for num_leaves, num_calls in ((1, 500), (10, 500), (1000, 50)):
        measure("jitted    ", jax.jit(add_one), num_leaves, num_calls, num_rounds)
        measure("do nothing", do_nothing, num_leaves, 2000, num_rounds)


if __name__ == "__main__":
    main()
