"""Regression without a library: a model that is two functions: python examples/plain_functions.py [RUN_DIR]."""

import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from trackside import OptimizerConfig, SchedulerConfig, Trainer

WIDTHS = (1, 32, 32, 1)


def init_fn(key):
    """Parameters are any pytree of arrays."""
    return {
        f"layer_{index}": init_layer(jax.random.fold_in(key, index), *WIDTHS[index : index + 2]) for index in range(3)
    }


def init_layer(key, num_inputs, num_outputs):
    kernel = jax.random.normal(key, (num_inputs, num_outputs)) / np.sqrt(num_inputs)
    return {"kernel": kernel, "bias": jnp.zeros(num_outputs)}


def apply_fn(params, x):
    """Scopes with the names of the parameters give the summary and profiles their rows."""
    for index in range(3):
        with jax.named_scope(f"layer_{index}"):
            layer = params[f"layer_{index}"]
            x = x @ layer["kernel"] + layer["bias"]
        x = jnp.tanh(x) if index < 2 else x
    return x


def loss_fn(model, batch, rng):
    inputs, targets = batch
    return ((model(inputs) - targets) ** 2).mean()


inputs = np.random.default_rng(0).uniform(-2, 2, (2560, 1)).astype(np.float32)
batches = [(inputs[at : at + 32], np.sin(2 * inputs[at : at + 32])) for at in range(0, 2560, 32)]
run_dir = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()

first = Trainer((init_fn, apply_fn), loss_fn, OptimizerConfig(name="adam"))
print(first.summary(batches))
rates = first.find_learning_rate(batches, lowest=1e-5)  # trains a copy; nothing is written
print(rates)

schedule = SchedulerConfig(name="cosine", lr=rates.suggestion or 1e-3, decay_steps=640)
trainer = Trainer((init_fn, apply_fn), loss_fn, OptimizerConfig(name="adam", scheduler=schedule), run=run_dir)
metrics = trainer.fit(batches[:64], batches[64:72], batches[72:], num_epochs=10)
predicted = apply_fn(trainer.model, np.ones((1, 1), np.float32))[0, 0]  # trainer.model is the trained parameters
print(f"test loss {metrics['test']['loss']:.4f}; sin(2) is {predicted:.3f}, and should be {np.sin(2):.3f}")
