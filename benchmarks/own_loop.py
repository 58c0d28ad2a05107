"""What it costs to measure a loop of one's own, and whether what it shows is true.

The bare loop and the measured one take turns on the same step: `run.batches`, `run.step` and a `run.log` of the loss at
every step against a plain `for`. What a step costs is the time that the thread computes, which other processes disturb
least: around a step that returns at once, where caches stay warm, and around a jitted one. Longer steps
are timed by the clock, and may take longer by the same limit, or by what two bare loops differ by. A delay in each part
has to appear there, and nowhere else; waits for the device in the loop's own code (`benchmarks.own_waits`) have to be
told from work.
"""

import functools
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import trackside
from benchmarks import own_waits
from benchmarks.interleaved import Timing, race
from benchmarks.ledger_truth import Sleep
from trackside.measured_run import MeasuredRun

NUM_ROUNDS = 20
SIZES = {
    "warm": (0, 8, 2000),
    "short": (64, 8, 1000),
    "0.1 ms": (128, 64, 400),
    "1 ms": (256, 128, 100),
    "5 ms": (384, 640, 40),
}
"""The width of the model, or 0 for a step that returns at once; the examples of a batch; the steps of a round."""
LIMIT_US = 6.0
DELAYS_MS = (2, 10, 30)
NUM_DELAYED_STEPS = 50
TOLERANCE = 0.1


def build_step(width: int) -> tuple[Callable[..., Any], Any]:
    """A training step of an MLP whose state is donated, and the state."""
    keys = jax.random.split(jax.random.key(0), 2)
    params = {f"layer_{index}": jax.random.normal(key, (width, width)) / width**0.5 for index, key in enumerate(keys)}

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        hidden = jnp.tanh(x @ params["layer_0"])
        return jnp.mean((hidden @ params["layer_1"] - y) ** 2)

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(params: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, *batch)
        return jax.tree.map(lambda param, grad: param - 1e-3 * grad, params, grads), loss

    return train_step, params


def build_done_step() -> tuple[Callable[..., Any], Any]:
    """A step whose results are there already, and the state."""
    result = jax.block_until_ready((jnp.zeros(1), jnp.zeros(())))

    def train_step(state: Any, batch: Any) -> Any:
        del state, batch
        return result

    return train_step, result[0]


def measure_cost(run: MeasuredRun, width: int, batch_size: int, num_steps: int) -> dict[str, Timing]:
    """What a step takes by itself, with its call and its batch measured, and with its loss logged as well."""
    step, params = build_step(width) if width else build_done_step()
    batch = (np.ones((batch_size, width or 1), np.float32), np.zeros((batch_size, width or 1), np.float32))
    loader = [batch] * num_steps
    measured = run.step(step)
    states = {name: jax.tree.map(jnp.copy, params) for name in ("bare", "again", "measured", "logged")}

    def run_bare(name: str) -> None:
        state = states[name]
        for batch in loader:
            state, _ = step(state, batch)
        states[name] = jax.block_until_ready(state)

    def run_measured() -> None:
        state = states["measured"]
        for batch in run.batches(loader):
            state, _ = measured(state, batch)
        states["measured"] = jax.block_until_ready(state)

    def run_logged() -> None:
        state = states["logged"]
        for batch in run.batches(loader):
            state, loss = measured(state, batch)
            run.log(loss=loss)
        states["logged"] = jax.block_until_ready(state)

    contestants = {
        "bare": lambda: run_bare("bare"),
        "measured": run_measured,
        "logged": run_logged,
        "again": lambda: run_bare("again"),
    }
    return race(contestants, num_steps, NUM_ROUNDS, time.perf_counter if width > 64 else time.thread_time)


def found_ms(part: str, sleep: Sleep) -> float:
    """What a run shows for a part, in ms per delay in it."""
    step, state = build_step(64)
    batch = (np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32))

    def wait(here: str) -> None:
        if here == part:
            sleep()

    def batches() -> Iterator[Any]:
        for _ in range(NUM_DELAYED_STEPS):
            wait("data_wait")
            yield batch

    def slow_step(state: Any, batch: Any) -> Any:
        wait("dispatch")
        return step(state, batch)

    with trackside.run(None) as run:
        measured = run.step(slow_step)
        for given in run.batches(batches()):
            state, loss = measured(state, given)
            wait("other")
            run.log(loss=loss)
            for name in ("validation", "checkpointing", "augment"):
                with run.part(name):
                    wait(name)
    return 1e3 * run.ledger_totals.parts[part] / sleep.num_calls


def print_costs() -> int:
    """Print what a step costs in the best round; how many figures are over their limits."""
    num_over = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, size in SIZES.items():
            with trackside.run(Path(folder) / name) as run:
                timings = measure_cost(run, *size)
            if name.endswith("ms"):
                num_over += print_noise(name, timings)
                continue
            bare_us, measured_us, logged_us = (timings[key].best_us for key in ("bare", "measured", "logged"))
            num_over += name == "warm" and logged_us - bare_us > LIMIT_US
            print(
                f"{name:>6}: bare {bare_us:.1f} us, call and batch {measured_us - bare_us:+.1f} us, with a value "
                f"logged {logged_us - bare_us:+.1f} us{f'; at most {LIMIT_US:+.1f} us' if name == 'warm' else ''}"
            )
    return num_over


def print_noise(name: str, timings: dict[str, Timing]) -> int:
    """Print how much longer steps take by the clock; 1 if that is over the limit, and more than noise.

    Args:
        name: What the steps are called.
        timings: What they took.
    """
    bare, again = timings["bare"], timings["again"]
    differences = [abs(a - b) for a, b in zip(bare.rounds_s, again.rounds_s, strict=True)]
    noise_us, more_us = 1e6 * statistics.median(differences), timings["logged"].overhead_us(bare)
    print(
        f"{name:>6}: bare {bare.median_us:.0f} us, with everything {more_us:+.0f} us; two bare loops differ by "
        f"{noise_us:.0f} us"
    )
    return int(more_us > max(noise_us, LIMIT_US))


def print_truth() -> int:
    """Print what is found of delays; how many figures are not true."""
    num_untrue = 0
    for part in ("data_wait", "dispatch", "other", "validation", "checkpointing", "augment"):
        without_ms = found_ms(part, Sleep(0.0))
        for delay_ms in DELAYS_MS:
            sleep = Sleep(delay_ms / 1e3)
            shown_ms = found_ms(part, sleep) - without_ms
            slept_ms = 1e3 * sleep.slept_s / sleep.num_calls
            is_off = abs(shown_ms - slept_ms) > TOLERANCE * slept_ms
            num_untrue += is_off
            print(f"{part:>14}: {slept_ms:6.2f} ms slept, {shown_ms:6.2f} ms found{' OFF' if is_off else ''}")
    return num_untrue


def main() -> int:
    """How many figures are over their limits or not true."""
    logging.getLogger("trackside").setLevel(logging.ERROR)
    return print_costs() + print_truth() + own_waits.print_truth()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
