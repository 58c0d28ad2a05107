"""Decode velocity from spikes with JAX and with PyTorch: python examples/decode_velocity.py [RUN_DIR].

A hand moves smoothly in the plane. Each neuron of a population fires at a rate that depends on the velocity; its spikes
are counted in bins of 20 ms. A diagonal state-space model (Equinox) and a GRU (PyTorch) learn to predict the velocity
from the counts. At the end, the script prints both profiles side by side.
"""

import sys
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

from trackside.decoding import mse_loss, r2_score, train_decoding_jax, train_decoding_torch
from trackside.profiling import get_profiler

NUM_TRIALS, NUM_BINS, NUM_NEURONS, BATCH_SIZE = 160, 64, 48, 32


def simulate(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Spike counts (trials, bins, neurons) and velocities (trials, bins, 2)."""
    rng = np.random.default_rng(seed)
    window = np.hanning(17)
    noise = rng.normal(size=(NUM_TRIALS, NUM_BINS + 16, 2))
    smooth = np.apply_along_axis(lambda trace: np.convolve(trace, window / np.linalg.norm(window), "valid"), 1, noise)
    preferred = rng.normal(size=(2, NUM_NEURONS))
    preferred /= np.linalg.norm(preferred, axis=0)
    rates_hz = np.exp(np.log(15.0) + 0.8 * smooth @ preferred)
    return rng.poisson(rates_hz * 0.02).astype(np.float32), smooth.astype(np.float32)


class DiagonalSSM(eqx.Module):
    """x[t] = a * x[t-1] + B u[t] for complex a inside the unit circle, read out linearly."""

    log_decay: jax.Array
    frequency: jax.Array
    encoder: eqx.nn.Linear
    decoder: eqx.nn.Linear

    def __init__(self, num_states: int, key: jax.Array):
        decay_key, encoder_key, decoder_key = jax.random.split(key, 3)
        self.log_decay = jnp.log(jax.random.uniform(decay_key, (num_states,), minval=0.05, maxval=0.7))
        self.frequency = jnp.linspace(0.0, 1.0, num_states)
        self.encoder = eqx.nn.Linear(NUM_NEURONS, 2 * num_states, key=encoder_key)
        self.decoder = eqx.nn.Linear(2 * num_states, 2, key=decoder_key)

    def __call__(self, spikes, state, key):
        transition = jnp.exp(-jnp.exp(self.log_decay) + 1j * self.frequency)
        real, imaginary = jnp.split(jax.vmap(self.encoder)(spikes), 2, axis=-1)

        def advance(previous, drive):
            current = transition * previous + drive
            return current, current

        _, states = jax.lax.scan(advance, jnp.zeros_like(transition), real + 1j * imaginary)
        return jax.vmap(self.decoder)(jnp.concatenate([states.real, states.imag], axis=-1)), state


class GRU(torch.nn.Module):
    def __init__(self, num_states: int):
        super().__init__()
        self.recurrent = torch.nn.GRU(NUM_NEURONS, num_states, batch_first=True)
        self.decoder = torch.nn.Linear(num_states, 2)

    def forward(self, spikes):
        return self.decoder(self.recurrent(spikes)[0])


def show_side_by_side(profiles: dict[str, dict[str, dict[str, float]]]) -> None:
    print(f"{'average time per call':32}" + "".join(f"{name:>16}" for name in profiles))
    for operation in sorted(set().union(*profiles.values())):
        times = (profile.get(operation) for profile in profiles.values())
        cells = (f"{entry['avg_time'] * 1e3:13.3f} ms" if entry else f"{'-':>16}" for entry in times)
        print(f"{operation:32}" + "".join(cells))


torch.set_num_threads(1)  # such small steps spend more time on sharing work than on doing it
run_dir = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
spikes, velocity = simulate()
train, val = (spikes[:128], velocity[:128]), (spikes[128:], velocity[128:])
batches = [
    (train[0][start : start + BATCH_SIZE], train[1][start : start + BATCH_SIZE]) for start in range(0, 128, BATCH_SIZE)
]
profiler, profiles, scores = get_profiler(), {}, {}

ssm = DiagonalSSM(16, jax.random.PRNGKey(0))
opt = optax.adam(1e-2)
opt_state = opt.init(eqx.filter(ssm, eqx.is_inexact_array))
ssm = train_decoding_jax(
    ssm,
    eqx.is_inexact_array,
    batches,
    train,
    val,
    mse_loss,
    None,
    opt,
    opt_state,
    epochs=60,
    log_every=20,
    key=jax.random.PRNGKey(1),
    enable_profiling=True,
    save_dir=run_dir / "ssm",
)
profiles["SSM in JAX"] = profiler.get_summary()
scores["SSM"] = r2_score(val[1], jax.vmap(lambda trial: ssm(trial, None, None)[0])(val[0])).mean

profiler.reset()
torch.manual_seed(0)
gru = GRU(32)
train_decoding_torch(
    gru,
    batches,
    train,
    val,
    torch.optim.Adam(gru.parameters(), lr=1e-2),
    torch.nn.MSELoss(),
    num_epochs=40,
    enable_profiling=True,
    log_every=20,
    save_dir=run_dir / "gru",
)
profiles["GRU in PyTorch"] = profiler.get_summary()
with torch.no_grad():
    scores["GRU"] = r2_score(val[1], gru(torch.from_numpy(val[0])).numpy()).mean

show_side_by_side(profiles)
print("validation R²: " + ", ".join(f"{name} {score:.3f}" for name, score in scores.items()))
print(f"both decode well: {min(scores.values()) > 0.8}; the runs are in {run_dir}")
