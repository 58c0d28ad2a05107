"""Whether waits for the device in a loop's own code are distinguished from the work around them.

Steps of 2, 10 and 30 ms, whose loss is read at every step, at every tenth, or never, with 0 or 5 ms of work before or
after that. How long the loop really waits and works is measured where it does. The first of a few attempts that is true
counts, because a busy machine delays things by itself.
"""

import itertools
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import trackside

STEPS_MS = (2, 10, 30)
WORK_MS = ((0, 0), (5, 0), (0, 5))
READ_EVERY = (1, 10, 0)
TOLERANCE = 0.1
"""Of the time between the calls."""
NEGLIGIBLE_S = 2e-4
"""What a step may be off in any case: shorter waits are not looked for."""
NUM_STEPS, NUM_WARM_UP = 40, 5
NUM_ATTEMPTS = 3


@dataclass
class Truth:
    """What a loop did between its calls, and what the ledger shows of it, in seconds per step."""

    waited_s: float = 0.0
    worked_s: float = 0.0
    shown_wait_s: float = 0.0
    shown_other_s: float = 0.0

    @property
    def is_true(self) -> bool:
        off_s = abs(self.shown_wait_s - self.waited_s)
        return off_s <= max(TOLERANCE * (self.waited_s + self.worked_s), NEGLIGIBLE_S)


def compute(seconds: float) -> None:
    """Work for some time of the thread."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def build_step() -> Callable[..., Any]:
    """A jitted step that takes longer the higher the number that it is given."""
    weights = jnp.ones((256, 256))

    def step(state: Any, number: Any) -> Any:
        state = jax.lax.fori_loop(0, number, lambda _, state: jnp.tanh(1e-3 * state @ weights), state)
        return state, state.sum()

    return jax.jit(step)


def number_for(step: Callable[..., Any], step_s: float) -> int:
    """The number with which the step takes some time."""
    state = jnp.ones((256, 256))
    jax.block_until_ready(step(state, 1))
    start_s = time.perf_counter()
    jax.block_until_ready(step(state, 50))
    return max(round(50 * step_s / (time.perf_counter() - start_s)), 1)


def measure(function: Callable[..., Any], number: int, every: int, before_s: float, after_s: float) -> Truth:
    """Run a loop that reads its loss now and then."""
    truth, state = Truth(), jnp.ones((256, 256))
    with trackside.run(None) as run:
        step = run.step(function)
        earlier = run.ledger_totals
        for index in run.batches(range(NUM_WARM_UP + NUM_STEPS)):
            if index == NUM_WARM_UP:
                truth, earlier = Truth(), run.ledger_totals
            state, loss = step(state, number)
            start_s = time.perf_counter()
            if before_s:
                compute(before_s)
            read_s = time.perf_counter()
            if every and index % every == 0:
                float(loss)
            there_s = time.perf_counter()
            if after_s:
                compute(after_s)
            truth.waited_s += (there_s - read_s) / NUM_STEPS
            truth.worked_s += (time.perf_counter() - start_s - (there_s - read_s)) / NUM_STEPS
        shown = run.ledger_totals.since(earlier).parts
    truth.shown_wait_s, truth.shown_other_s = shown["device_wait"] / NUM_STEPS, shown["other"] / NUM_STEPS
    return truth


def print_truth() -> int:
    """Print what is shown of waits and work; how many figures are not true."""
    num_untrue, step = 0, build_step()
    for step_ms, every, (before_ms, after_ms) in itertools.product(STEPS_MS, READ_EVERY, WORK_MS):
        for _ in range(NUM_ATTEMPTS):
            truth = measure(step, number_for(step, step_ms / 1e3), every, before_ms / 1e3, after_ms / 1e3)
            if truth.is_true:
                break
        num_untrue += not truth.is_true
        print(
            f"steps of {step_ms:2} ms, read {f'every {every}' if every else 'never':>8}, {before_ms} ms of work before "
            f"and {after_ms} after: waited {1e3 * truth.waited_s:5.2f} ms, {1e3 * truth.shown_wait_s:5.2f} shown; "
            f"worked {1e3 * truth.worked_s:5.2f}, {1e3 * truth.shown_other_s:5.2f} shown"
            f"{'' if truth.is_true else ' OFF'}"
        )
    return num_untrue


if __name__ == "__main__":
    logging.getLogger("trackside").setLevel(logging.ERROR)
    sys.exit(1 if print_truth() else 0)
