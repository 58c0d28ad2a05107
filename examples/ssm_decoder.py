"""A state-space model in Equinox decodes velocity from spikes: python examples/ssm_decoder.py [RUN_DIR].

A hand moves smoothly in the plane. Each neuron of a population fires at a rate that depends on the velocity; its spikes
are counted in bins of 20 ms. The model learns to tell the velocity from the counts. `examples/decode_velocity.py` does
the same with the decoding loops, and next to PyTorch.
"""

import sys
import tempfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from trackside import Trainer

NUM_TRIALS, NUM_BINS, NUM_NEURONS, NUM_STATES, BATCH_SIZE = 320, 64, 48, 32, 32


def simulate():
    """Spike counts (trials, bins, neurons) and velocities (trials, bins, 2)."""
    rng = np.random.default_rng(0)
    window = np.hanning(17) / np.linalg.norm(np.hanning(17))
    noise = rng.normal(size=(NUM_TRIALS, NUM_BINS + 16, 2))
    velocity = np.apply_along_axis(lambda trace: np.convolve(trace, window, "valid"), 1, noise)
    preferred = rng.normal(size=(2, NUM_NEURONS))
    rates_hz = 15 * np.exp(0.8 * velocity @ (preferred / np.linalg.norm(preferred, axis=0)))
    return rng.poisson(rates_hz * 0.02).astype(np.float32), velocity.astype(np.float32)


class StateSpace(eqx.Module):
    """x[t] = a * x[t-1] + u[t] for complex a inside the unit circle, all bins at once."""

    log_decay: jax.Array
    frequency: jax.Array

    def __init__(self):
        self.log_decay = jnp.log(jnp.linspace(0.05, 0.7, NUM_STATES))
        self.frequency = jnp.linspace(0.0, 1.0, NUM_STATES)

    def __call__(self, drive):
        a = jnp.exp(-jnp.exp(self.log_decay) + 1j * self.frequency)
        inputs = jax.lax.complex(*jnp.split(drive, 2, axis=-1))

        def combine(left, right):
            return left[0] * right[0], right[0] * left[1] + right[1]

        _, states = jax.lax.associative_scan(combine, (jnp.broadcast_to(a, inputs.shape), inputs))
        return jnp.concatenate([states.real, states.imag], axis=-1)


class Decoder(eqx.Module):
    encode: eqx.nn.Linear
    states: StateSpace
    norm: eqx.nn.LayerNorm
    decode: eqx.nn.Linear

    def __init__(self, key):
        first, last = jax.random.split(key)
        self.encode = eqx.nn.Linear(NUM_NEURONS, 2 * NUM_STATES, key=first)
        self.states = StateSpace()
        self.norm = eqx.nn.LayerNorm(2 * NUM_STATES)
        self.decode = eqx.nn.Linear(2 * NUM_STATES, 2, key=last)

    def __call__(self, spikes):
        hidden = self.states(jax.vmap(self.encode)(spikes))
        return jax.vmap(self.decode)(jax.vmap(self.norm)(hidden))


def loss_fn(model, batch, rng):
    errors = (jax.vmap(model)(batch["x"]) - batch["y"]) ** 2
    return errors.mean()


spikes, velocity = simulate()
starts = range(0, NUM_TRIALS, BATCH_SIZE)
batches = [{"x": spikes[at : at + BATCH_SIZE], "y": velocity[at : at + BATCH_SIZE]} for at in starts]
train, val, test = batches[:7], batches[7:8], batches[8:]

run_dir = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
trainer = Trainer(lambda key: Decoder(key), loss_fn, optax.adam(1e-2), run=run_dir)
print(trainer.summary(train))
trainer.fit(train, val, num_epochs=15)
predicted, true = trainer.predict(test), np.concatenate([batch["y"] for batch in test])
r2 = 1 - ((predicted - true) ** 2).sum() / ((true - true.mean((0, 1))) ** 2).sum()
print(f"R2 on new trials {r2:.2f}; a decay of the fastest state of {np.exp(trainer.model.states.log_decay).max():.2f}")
