"""Measure a loop of your own, here plain JAX with optax: python examples/own_loop.py [RUN_DIR]."""

import functools
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax

import trackside

optimizer = optax.adam(1e-2)


def loss_fn(params, batch):
    inputs, targets = batch
    return ((jnp.tanh(inputs @ params["w1"] + params["b1"]) @ params["w2"] - targets) ** 2).mean()


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


keys = jax.random.split(jax.random.key(0))
params = {
    "w1": jax.random.normal(keys[0], (1, 32)),
    "b1": jnp.zeros(32),
    "w2": jax.random.normal(keys[1], (32, 1)) / 6,
}
opt_state = optimizer.init(params)
inputs = np.random.default_rng(0).uniform(-2, 2, (36, 64, 1)).astype(np.float32)
batches = [(x, np.sin(2 * x)) for x in inputs]

with trackside.run(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(), config={"lr": 1e-2}) as run:
    step, evaluate = run.step(train_step), run.step(jax.jit(loss_fn), steps_per_call=0)
    for _ in range(10):
        for batch in run.batches(batches[:32]):
            params, opt_state, loss = step(params, opt_state, batch)
            run.log(loss=loss)
        with run.part("validation"):
            run.log(loss=jnp.stack([evaluate(params, batch) for batch in batches[32:]]).mean())

read = trackside.open_run(run.path)
print(f"{read.status}: {run.num_steps} steps, validation loss {read.metrics['val']['loss'][-1]:.3f}; see {run.path}")
