"""What profiling costs in the decoding loops, and what the JAX loop saves over one of `make_step`.

Two trainings of the same model, one profiled and one not, take turns epoch by epoch in one process, so that noise of
the machine hits both alike and compiling counts for neither. Epochs are short, a few dozen milliseconds. The figure is
the median over the epochs of the ratio within a pair of epochs. Beside it stands the same for two trainings of which
none is profiled: what the machine alone makes of it.
"""

import contextlib
import io
import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

from trackside.decoding import make_step, mse_loss, train_decoding_jax, train_decoding_torch
from trackside.profiling import get_profiler

NUM_BINS, NUM_NEURONS, BATCH_SIZE = 64, 48, 32
NUM_EPOCHS = 200
NUM_WARM_UP_EPOCHS = 20
EPOCH_S = 0.04


class DiagonalSSM(eqx.Module):
    log_decay: jax.Array
    encoder: eqx.nn.Linear
    decoder: eqx.nn.Linear

    def __init__(self, num_states: int, key: jax.Array):
        encoder_key, decoder_key = jax.random.split(key)
        self.log_decay = jnp.linspace(-3.0, 0.0, num_states)
        self.encoder = eqx.nn.Linear(NUM_NEURONS, num_states, key=encoder_key)
        self.decoder = eqx.nn.Linear(num_states, 2, key=decoder_key)

    def __call__(self, spikes, state, key):
        decay = jnp.exp(-jnp.exp(self.log_decay))

        def advance(previous, drive):
            current = decay * previous + drive
            return current, current

        _, states = jax.lax.scan(advance, jnp.zeros_like(decay), jax.vmap(self.encoder)(spikes))
        return jax.vmap(self.decoder)(states), state


class GRU(torch.nn.Module):
    def __init__(self, num_states: int):
        super().__init__()
        self.recurrent = torch.nn.GRU(NUM_NEURONS, num_states, batch_first=True)
        self.decoder = torch.nn.Linear(num_states, 2)

    def forward(self, spikes):
        return self.decoder(self.recurrent(spikes)[0])


class Turns:
    """Lets several loops run one epoch each, in turn, and times them."""

    def __init__(self, names: list[str]):
        self._waiting = names
        self._changed = threading.Condition()
        self.epochs_s: dict[str, list[float]] = {name: [] for name in names}

    def wait_for(self, name: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting[0] == name)

    def pass_on(self, *to_the_end: str) -> None:
        with self._changed:
            self._waiting = [*self._waiting[1:], *to_the_end]
            self._changed.notify_all()


class Loader:
    """Starts an epoch when it is its turn. The epoch lasts until the next is asked for, when nothing is in flight."""

    def __init__(self, turns: Turns, name: str, batches: list[Any]):
        self._turns, self._name, self._batches = turns, name, batches
        self._start_s: float | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._start_s is not None:
            self._turns.epochs_s[self._name].append(time.perf_counter() - self._start_s)
            self._turns.pass_on(self._name)
        self._turns.wait_for(self._name)
        self._start_s = time.perf_counter()
        return iter(self._batches)


def train_in_turns(trainings: dict[str, Callable[[Loader], Any]], batch: Any, num_steps: int) -> dict[str, list[float]]:
    turns = Turns(list(trainings))

    def run(name: str) -> None:
        trainings[name](Loader(turns, name, [batch] * num_steps))
        turns.pass_on()

    threads = [threading.Thread(target=run, args=(name,)) for name in trainings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return turns.epochs_s


def make_batch(num_bins: int = NUM_BINS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    spikes = rng.poisson(0.3, (BATCH_SIZE, num_bins, NUM_NEURONS)).astype(np.float32)
    return spikes, rng.normal(size=(BATCH_SIZE, num_bins, 2)).astype(np.float32)


def jax_training(batch: Any, enable_profiling: bool, model: DiagonalSSM | None = None) -> Callable[[Loader], Any]:
    model, opt = DiagonalSSM(32, jax.random.PRNGKey(0)) if model is None else model, optax.adam(1e-3)
    opt_state = opt.init(eqx.filter(model, eqx.is_inexact_array))
    return lambda loader: train_decoding_jax(
        model,
        eqx.is_inexact_array,
        loader,
        batch,
        batch,
        mse_loss,
        None,
        opt,
        opt_state,
        epochs=NUM_EPOCHS,
        log_every=-1,
        enable_profiling=enable_profiling,
    )


def torch_training(batch: Any, enable_profiling: bool) -> Callable[[Loader], Any]:
    model = GRU(32)
    optimizer, loss_fn = torch.optim.Adam(model.parameters()), torch.nn.MSELoss()
    return lambda loader: train_decoding_torch(
        model,
        loader,
        batch,
        batch,
        optimizer,
        loss_fn,
        num_epochs=NUM_EPOCHS,
        enable_profiling=enable_profiling,
        log_every=-1,
        device="cpu",
    )


def measure(title: str, make: Callable[[Any, bool], Callable[[Loader], Any]], batch: Any, step_ms: float) -> None:
    num_steps = max(int(EPOCH_S / step_ms * 1e3), 3)
    for name, enable_profiling in (("not profiled, against itself", False), ("profiled", True)):
        get_profiler().reset()
        trainings = {"plain": make(batch, False), "other": make(batch, enable_profiling)}
        with contextlib.redirect_stdout(io.StringIO()):
            epochs_s = train_in_turns(trainings, batch, num_steps)
        pairs = list(zip(epochs_s["plain"][NUM_WARM_UP_EPOCHS:], epochs_s["other"][NUM_WARM_UP_EPOCHS:], strict=True))
        ratios = sorted(other / plain for plain, other in pairs)
        quarter = len(ratios) // 4
        plain_ms = statistics.median(plain for plain, _ in pairs) / num_steps * 1e3
        print(
            f"{title}, {name}: {statistics.median(ratios):.3f}x of {plain_ms:.2f} ms per step "
            f"(half of the epochs between {ratios[quarter]:.3f}x and {ratios[-quarter - 1]:.3f}x)"
        )


def make_step_training(batch: Any) -> Callable[[Loader], None]:
    """A hand-written loop of `make_step`, which waits for its last step at the end of an epoch."""
    model, opt, key = tiny_ssm(), optax.adam(1e-3), jax.random.PRNGKey(0)
    opt_state = opt.init(eqx.filter(model, eqx.is_inexact_array))

    def train(loader: Loader) -> None:
        carried, value, rng = (model, None, opt_state), None, key
        for _ in range(NUM_EPOCHS):
            for inputs, targets in loader:
                rng, step_key = jax.random.split(rng)
                *carried, value, _ = make_step(
                    carried[0], carried[1], eqx.is_inexact_array, inputs, targets, mse_loss, opt, carried[2], step_key
                )
            jax.block_until_ready(value)

    return train


def tiny_ssm() -> DiagonalSSM:
    return DiagonalSSM(4, jax.random.PRNGKey(0))


def measure_smallest_step() -> None:
    """The loop beside one of `make_step`, for a model so small that only what is around it counts."""
    batch = tuple(part[:8] for part in make_batch(num_bins=2))
    trainings = {"loop": jax_training(batch, False, tiny_ssm()), "make_step": make_step_training(batch)}
    num_steps = 100
    epochs_s = train_in_turns(trainings, batch, num_steps)
    best_us = {name: min(times[NUM_WARM_UP_EPOCHS:]) / num_steps * 1e6 for name, times in epochs_s.items()}
    print(f"smallest step: {best_us['loop']:.0f} us in the loop, {best_us['make_step']:.0f} us in one of make_step")


def main() -> None:
    logging.getLogger("trackside").addHandler(logging.NullHandler())
    logging.getLogger("trackside").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    measure_smallest_step()
    measure("SSM in JAX", jax_training, make_batch(), step_ms=1.0)
    measure("small SSM in JAX", jax_training, make_batch(num_bins=8), step_ms=0.3)
    measure("GRU in PyTorch", torch_training, make_batch(), step_ms=13.0)


if __name__ == "__main__":
    main()
