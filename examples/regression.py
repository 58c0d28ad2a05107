"""Fit a small network to a sine: python examples/regression.py [RUN_DIR]."""

import sys
import tempfile

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from trackside import Trainer


class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(1, 32, rngs=rngs)
        self.out = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.hidden(x)))


def loss_fn(model, batch, rng):
    inputs, targets = batch
    return ((model(inputs) - targets) ** 2).mean()


inputs = np.random.default_rng(0).uniform(-2, 2, (2560, 1)).astype(np.float32)
batches = [(inputs[at : at + 64], np.sin(2 * inputs[at : at + 64])) for at in range(0, 2560, 64)]
run_dir = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
trainer = Trainer(Net(nnx.Rngs(0)), loss_fn, optax.adam(1e-2), run=run_dir)
metrics = trainer.fit(batches[:32], batches[32:36], batches[36:], num_epochs=10)
print(f"test loss {metrics['test']['loss']:.4f}; the run is in {run_dir}")
