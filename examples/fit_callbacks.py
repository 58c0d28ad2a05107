"""Callbacks as objects, loaders set before: a digit autoencoder: python examples/fit_callbacks.py [RUN_DIR].

The style of `artifex`, with an NNX model; see docs/moving-from-artifex.md. Needs scikit-learn: pip install ".[demo]".
"""

import json
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

from trackside.callbacks import (
    CallbackList,
    CheckpointConfig,
    EarlyStopping,
    EarlyStoppingConfig,
    JAXProfiler,
    MemoryProfileConfig,
    MemoryProfiler,
    ModelCheckpoint,
    ProfilingConfig,
    ProgressBarCallback,
)
from trackside.trainer import DataloaderModule, Trainer


class Autoencoder(nnx.Module):
    def __init__(self, rngs):
        self.encode = nnx.Linear(64, 12, rngs=rngs)
        self.decode = nnx.Linear(12, 64, rngs=rngs)

    def __call__(self, x):
        return jax.nn.sigmoid(self.decode(jax.nn.gelu(self.encode(x))))


def loss_fn(model, batch, rng):
    return ((model(batch["x"]) - batch["x"]) ** 2).mean()


images = (load_digits().data / 16).astype(np.float32)[:1792]
batches = [{"x": images[at : at + 64]} for at in range(0, len(images), 64)]
run_dir = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())

trainer = Trainer(Autoencoder(nnx.Rngs(0)), loss_fn, optax.adam(1e-2), run=run_dir / "run")
trainer.set_dataset(DataloaderModule(train_dataloader=batches[:24], val_dataloader=batches[24:]))

callbacks = CallbackList(
    [
        # Profiling (runs first to capture full training)
        JAXProfiler(ProfilingConfig(log_dir=str(run_dir / "profiles"), start_step=30, end_step=35)),
        MemoryProfiler(MemoryProfileConfig(log_dir=str(run_dir / "memory"), profile_every_n_steps=50)),
        # Progress display
        ProgressBarCallback(),
        # Training control
        EarlyStopping(EarlyStoppingConfig(monitor="val_loss", patience=2, min_delta=2e-3)),
        # Checkpointing
        ModelCheckpoint(CheckpointConfig(dirpath=str(run_dir / "best"), monitor="val_loss")),
    ]
)
metrics = trainer.fit(num_epochs=40, callbacks=callbacks)

samples = json.loads((run_dir / "memory" / "memory_profile.json").read_text())
print(f"best validation loss {metrics['val']['loss']:.4f}, after {trainer.module.epoch} of at most 40 epochs")
print(f"{len(samples)} samples of memory; device time by layer: trackside trace {run_dir / 'profiles'}")
