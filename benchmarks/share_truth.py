"""How near the sampled share of a loss is to that of a loss timed by itself, on a quiet machine and on a busy one.

    python -m benchmarks.share_truth                    as the machine is, then with programs that it starts itself
    python -m benchmarks.share_truth --mode loaded      only the latter

Each training runs in its own process, on one core or on all of them, and times the gradient and the whole step in turn
with what it samples. The truth is their ratio in processor time: what they take on the clock depends on who else wants
the cores meanwhile, and that is seldom the same for both. A share is right if it is within 15 % of the truth, or if its
interval holds the truth. On several cores, XLA runs parts of the update while the gradient is still being computed,
unless the update needs all of the gradient (`clipped`).
"""

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.background_load import background_load
from benchmarks.truth_row import TruthRow

MAX_ERROR = 0.15
NUM_TRAININGS = 2
"""How many there are of each kind."""
CORES = ("one core", "all cores")
UPDATES = {"small": 3, "medium": 12, "large": 40, "clipped": 12}
"""How much work an update has."""

SCRIPT = """
import os, sys
cores, kind, work = sys.argv[1:]
if cores == "one core":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before jax counts the cores
import time
import jax, jax.numpy as jnp, numpy as np
from trackside.profiling import TrainingProfiler, profile_make_step
from trackside.profiling.timers import step_sampler

step_sampler.BUDGET = 10.0  # samples one after the other

def loss(params, x):
    for weights in params:
        x = jnp.tanh(x @ weights)
    return jnp.mean(x**2)

def update(value, gradient):
    for _ in range(int(work)):  # an update worth measuring
        gradient = jnp.sin(gradient)
    return value - 1e-3 * gradient

@jax.jit
def step(params, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    if kind == "clipped":
        norm = jnp.sqrt(sum(jnp.sum(gradient**2) for gradient in grads))
        grads = [gradient / jnp.maximum(norm, 1.0) for gradient in grads]
    return jax.tree.map(update, params, grads), value

rng = np.random.default_rng(0)
params = [jnp.asarray(rng.normal(size=(256, 256)) / 16, jnp.float32) for _ in range(3)]
x = jnp.asarray(rng.normal(size=(256, 256)), jnp.float32)
gradient = jax.jit(jax.value_and_grad(loss))
profiler = TrainingProfiler(log_to_wandb=False)
profiled = profile_make_step(step, profiler=profiler)
taken = {gradient: [], step: []}
while profiler.not_sampled_yet() or len(taken[step]) < 160:
    for _ in range(20):
        for function in taken:
            started = time.process_time()
            jax.block_until_ready(function(params, x))
            taken[function].append(time.process_time() - started)
    for _ in range(40):
        _, value = profiled(params, x)
    profiler.wait()
found = profiler.get_summary()["loss_fn_computation"]
truth = np.median(taken[gradient][2:]) / np.median(taken[step][2:])  # without the compiles
print(found["step_share"], found["step_share_low"], found["step_share_high"], truth, found["num_samples"])
"""


@dataclass(frozen=True)
class Measured:
    """What one training gave."""

    share: float
    low: float
    high: float
    truth: float
    num_samples: int

    @property
    def error(self) -> float:
        """How far the share is off, as a share of the truth."""
        return self.share / self.truth - 1.0

    @property
    def is_right(self) -> bool:
        """Whether it is near the truth, or says that it may not be."""
        return abs(self.error) <= MAX_ERROR or self.low <= self.truth <= self.high


def measure(cores: str, update: str) -> Measured:
    """Train once in a separate process."""
    command = [sys.executable, "-c", SCRIPT, cores, update, str(UPDATES[update])]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    share, low, high, truth, num_samples = map(float, result.stdout.split())
    return Measured(share, low, high, truth, int(num_samples))


def measure_mode(mode: str, num_trainings: int = NUM_TRAININGS) -> list[Measured]:
    """Train on one core and on all of them, with each kind of update, and print what came of it.

    Args:
        mode: `quiet`, for the machine as it is, or `loaded`, next to programs that it starts.
        num_trainings: How many of each kind.
    """
    print(f"{mode}:")
    found = []
    for cores in CORES:
        for update in UPDATES:
            for number in range(num_trainings):
                with background_load(seed=number) if mode == "loaded" else contextlib.nullcontext():
                    one = measure(cores, update)
                found.append(one)
                print(
                    f"  {cores}, {update} update: sampled {one.share:.2f} ({one.low:.2f} to {one.high:.2f}, "
                    f"{one.num_samples} samples), timed {one.truth:.2f}: {100 * one.error:+.0f} %"
                    f"{'' if one.is_right else '  WRONG'}",
                    flush=True,
                )
    near = sum(abs(one.error) <= MAX_ERROR for one in found)
    right = sum(one.is_right for one in found)
    print(f"  {right} of {len(found)} right: {near} within {100 * MAX_ERROR:.0f} %, or else within their interval")
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["quiet", "loaded", "both"], default="both")
    parser.add_argument("--trainings", type=int, default=NUM_TRAININGS, help="how many of each kind")
    options = parser.parse_args(arguments or [])
    for mode in ("quiet", "loaded") if options.mode == "both" else (options.mode,):
        measure_mode(mode, options.trainings)


def truth_rows(updates: tuple[str, ...] = ("small", "clipped")) -> Iterator[TruthRow]:
    """The sampled share of the loss, on one core and on all of them."""
    for cores in CORES:
        for update in updates:
            one = measure(cores, update)
            what = f"share of the loss, {cores}, {update} update"
            yield TruthRow(what, one.truth, one.share, MAX_ERROR, interval=(one.low, one.high))


if __name__ == "__main__":
    main(sys.argv[1:])
