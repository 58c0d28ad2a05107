"""What it costs to measure a loop of one's own, and whether what it shows is true.

The bare loop and the measured one take turns on the same jitted step: `run.batches`, `run.step` and a `run.log` of the
loss at every step against a plain `for`. A delay in each part has to appear there, and nowhere else.
"""

import functools
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import trackside
from benchmarks.interleaved import Timing, race
from benchmarks.ledger_truth import Sleep
from trackside.measured_run import MeasuredRun

NUM_ROUNDS = 20
SIZES = {"short": (64, 8, 1000), "long": (256, 256, 150)}
"""The width of the model, the examples of a batch, and the steps of a round."""
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


def measure_cost(run: MeasuredRun, width: int, batch_size: int, num_steps: int) -> dict[str, Timing]:
    """What a step takes by itself, with its call and its batch measured, and with its loss logged as well."""
    step, params = build_step(width)
    batch = (np.ones((batch_size, width), np.float32), np.zeros((batch_size, width), np.float32))
    loader = [batch] * num_steps
    measured = run.step(step)
    states = {name: jax.tree.map(jnp.copy, params) for name in ("bare", "measured", "logged")}

    def run_bare() -> None:
        state = states["bare"]
        for batch in loader:
            state, _ = step(state, batch)
        states["bare"] = jax.block_until_ready(state)

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

    contestants = {"bare": run_bare, "measured": run_measured, "logged": run_logged}
    return race(contestants, num_steps, NUM_ROUNDS)


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
    """Print what a step takes in the best round; how many figures are over their limits."""
    num_over = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, size in SIZES.items():
            with trackside.run(Path(folder) / name) as run:
                timings = measure_cost(run, *size)
            bare_us, measured_us, logged_us = (timings[key].best_us for key in ("bare", "measured", "logged"))
            num_over += name == "short" and logged_us - bare_us > LIMIT_US
            print(
                f"{name:>6}: bare {bare_us:.1f} us, call and batch {measured_us - bare_us:+.1f} us, with a value "
                f"logged {logged_us - bare_us:+.1f} us; at most {LIMIT_US:+.1f} us expected"
            )
    return num_over


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
    return print_costs() + print_truth()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
