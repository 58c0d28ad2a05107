"""What a capture costs: inside its window, and while it is written and analysed.

The step takes about 5 ms, is jitted and waited for. Captured and plain blocks of steps alternate.
"""

import contextlib
import io
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from trackside.profiling.capture import CaptureContext, start_capture

BLOCK_STEPS = 20
NUM_ROUNDS = 12


def make_step(width: int = 256, depth: int = 6, rows: int = 256) -> Callable[[], None]:
    """A jitted training step of about 5 ms, which is waited for."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        for index, weight in enumerate(params):
            with jax.named_scope(f"layer_{index}"):
                x = x + jnp.tanh(x @ weight)
        return jnp.mean(x**2)

    @jax.jit
    def bench_step(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 1e-4 * g, params, grads), value

    keys = jax.random.split(jax.random.key(0), depth)
    state = {"params": [jax.random.normal(key, (width, width)) / width for key in keys]}
    x = jax.random.normal(jax.random.key(1), (rows, width))
    number = 0

    def step() -> None:
        nonlocal number
        number += 1
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            state["params"], value = bench_step(state["params"], x)
            value.block_until_ready()

    return step


def time_steps(step: Callable[[], None], num_steps: int) -> list[float]:
    seconds = []
    for _ in range(num_steps):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return seconds


def measure_window(step: Callable[[], None]) -> None:
    time_steps(step, 20)
    ratios, plain_ms, sizes, stops, finishes, during = [], [], [], [], [], []
    for index in range(NUM_ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            plain = time_steps(step, BLOCK_STEPS)
            capture = start_capture(folder, f"round_{index}", 1)
            traced = time_steps(step, BLOCK_STEPS)
            capture.stop(BLOCK_STEPS, CaptureContext(program="jit_bench_step"))
            while not capture.is_done:
                during += time_steps(step, 1)
            result = capture.wait()
        assert not result.error, result.error
        ratios.append(statistics.median(traced) / statistics.median(plain))
        plain_ms += [1e3 * seconds for seconds in plain]
        sizes.append(result.size_bytes)
        stops.append(1e3 * result.stop_s)
        finishes.append(1e3 * result.finish_s)
    print(f"captures of {BLOCK_STEPS} steps of {statistics.median(plain_ms):.1f} ms, {NUM_ROUNDS} rounds")
    print(f"  inside the window: {statistics.median(ratios):.3f}x (rounds {min(ratios):.2f} to {max(ratios):.2f})")
    print(
        f"  in the background: {statistics.median(sizes) / 1e3:.0f} kB, "
        f"stopped after {statistics.median(stops):.0f} ms, "
        f"written and analysed {statistics.median(finishes):.0f} ms later"
    )
    print(
        f"  steps meanwhile: median {1e3 * statistics.median(during):.1f} ms, longest {1e3 * max(during):.1f} ms; "
        f"longest without a capture {max(plain_ms):.1f} ms"
    )


def main() -> None:
    logging.getLogger("trackside").setLevel(logging.ERROR)
    with contextlib.redirect_stderr(io.StringIO()):
        measure_window(make_step())


if __name__ == "__main__":
    main()
