"""Whether the tables tell the truth: a scope that does k times the work of another has k times its time."""

import statistics
import subprocess
import sys
import tempfile

from trackside.trace import analyse_trace

NUM_ROUNDS = 5

CAPTURE = """
import sys
import jax, jax.numpy as jnp
from jax.profiler import ProfileOptions, StepTraceAnnotation
factor, width, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def loss(weights, x):
    with jax.named_scope("light"):
        x = jnp.tanh(x @ weights[0])
    with jax.named_scope("heavy"):
        for index in range(factor):
            x = jnp.tanh(x @ weights[index + 1])
    with jax.named_scope("light"):
        x = jnp.tanh(x @ weights[factor + 1])
    return (x**2).mean()
# Every layer has the same three products: the input is differentiated, too, and each weight is an array of its own.
step = jax.jit(jax.grad(loss, argnums=(0, 1)))
weights, x = [jnp.full((width, width), 0.01) for _ in range(factor + 2)], jnp.ones((width, width))
jax.block_until_ready(step(weights, x))
options = ProfileOptions()
options.python_tracer_level = 0
with jax.profiler.trace(folder, profiler_options=options):
    for index in range(20):
        with StepTraceAnnotation("train", step_num=index):
            gradients = jax.block_until_ready(step(weights, x))
"""


def measured_factor(factor: int, width: int) -> float:
    """The time of the heavy scope next to that of the light one, which holds two layers."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", CAPTURE, str(factor), str(width), folder], check=True)
        busy = {"light": 0.0, "heavy": 0.0}
        for row in analyse_trace(folder).scopes:
            if row.scope in busy:
                busy[row.scope] += row.busy_s
    return 2 * busy["heavy"] / busy["light"]


def main() -> None:
    print(f"a scope made k times heavier: what the trace shows for k, median of {NUM_ROUNDS}")
    for width in (256, 768):
        for factor in (4, 8):
            shown = [measured_factor(factor, width) for _ in range(NUM_ROUNDS)]
            median = statistics.median(shown)
            print(
                f"  layers of {width:4}, k = {factor}: {median:5.2f} ({100 * (median / factor - 1):+5.1f} %), "
                f"from {min(shown):.2f} to {max(shown):.2f}"
            )


if __name__ == "__main__":
    main()
