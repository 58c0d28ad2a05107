"""A real training in which every section of the report has something to show."""

import os
from pathlib import Path

from tests.trainer.tiny import make_batch, make_loader, make_trainer
from trackside.callbacks import CheckpointConfig, JaxProfilerConfig, MemoryProfileConfig
from trackside.logger import LoggerConfig


def train(run_dir: Path) -> Path:
    """Train, stop, and resume: two legs with validation, a ragged batch, checkpoints, memory samples and captures."""
    before = Path.cwd()
    os.chdir(run_dir.parent)  # the memory profiler writes below the working directory
    try:
        for num_epochs in (3, 6):
            _trainer(run_dir).train_model(
                [*make_loader(12), make_batch(3)],
                make_loader(2, seed=50),
                make_loader(2, seed=70),
                num_epochs=num_epochs,
            )
    finally:
        os.chdir(before)
    return run_dir


def _trainer(run_dir: Path):
    return make_trainer(
        logger=LoggerConfig(log_path=run_dir, log_every_n_steps=2),
        callbacks=[
            JaxProfilerConfig(profile_every_n_minutes=-1, profile_first_step=4, profile_n_steps=4, trace_memory=True),
            MemoryProfileConfig(log_dir="memory", profile_every_n_steps=5),
            CheckpointConfig(dirpath="checkpoints", monitor="val_loss", save_top_k=2),
        ],
        resume="auto",
        lr=0.01,
    )
