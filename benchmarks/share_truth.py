"""How near the sampled share of a loss is to that of a loss timed by itself, on one core and on all of them.

Each training runs in its own process, and times the gradient and the whole step in turn with what it samples. On one
core the two figures should agree within 15 %. On several, XLA runs parts of the update while the gradient is still
being computed; and with other programs on the machine, operations that use all cores wait for whichever was taken away.
Only the interval shows that, and only as far as samples differ.
"""

import subprocess
import sys

NUM_TRAININGS = 5

SCRIPT = """
import os, sys
if sys.argv[1] == "one core":
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
    for _ in range(16):  # an update worth measuring
        gradient = jnp.sin(gradient)
    return value - 1e-3 * gradient

@jax.jit
def step(params, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(update, params, grads), value

rng = np.random.default_rng(0)
params = [jnp.asarray(rng.normal(size=(256, 256)) / 16, jnp.float32) for _ in range(4)]
x = jnp.asarray(rng.normal(size=(256, 256)), jnp.float32)
gradient = jax.jit(jax.value_and_grad(loss))
profiler = TrainingProfiler(log_to_wandb=False)
profiled = profile_make_step(step, profiler=profiler)
taken = {gradient: [], step: []}
while profiler.not_sampled_yet() or len(taken[step]) < 120:
    for _ in range(40):
        for function in taken:
            started = time.perf_counter()
            jax.block_until_ready(function(params, x))
            taken[function].append(time.perf_counter() - started)
    for _ in range(60):
        _, value = profiled(params, x)
    profiler.wait()
found = profiler.get_summary()["loss_fn_computation"]
truth = min(taken[gradient]) / min(taken[step])  # anything above the minimum is other programs
print(found["step_share"], truth, found["num_samples"], found["step_share_low"], found["step_share_high"])
"""


def measure(where: str) -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT, where], capture_output=True, text=True, check=True)
    share, truth, num_samples, low, high = map(float, result.stdout.split())
    print(
        f"  {where}: sampled {share:.2f} ({low:.2f} to {high:.2f}, {num_samples:.0f} samples), timed {truth:.2f}, "
        f"ratio {share / truth:.2f}"
    )


def main() -> None:
    for where in ("one core", "all cores"):
        for _ in range(NUM_TRAININGS):
            measure(where)


if __name__ == "__main__":
    main()
