"""One real tiny training that leaves something of everything behind, and ways to call the command line on it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.trainer.tiny import make_batch, make_loader, make_trainer
from trackside.callbacks import JaxProfilerConfig, MemoryProfileConfig
from trackside.logger import LoggerConfig

STEPS_PER_EPOCH = 31
NUM_EPOCHS = 3
FIRST_CAPTURED, LAST_CAPTURED = 21, 24
"""After warm-up and ten clean steps, since on a busy machine writing the capture disturbs all steps that follow it."""


def train_run(path: Path) -> Path:
    """A run with validation, a capture, memory samples and a last batch of another shape."""
    trainer = make_trainer(
        logger=LoggerConfig(log_path=path, log_every_n_steps=2),
        callbacks=[
            JaxProfilerConfig(
                profile_every_n_minutes=-1,
                profile_first_step=FIRST_CAPTURED - 1,
                profile_n_steps=LAST_CAPTURED - FIRST_CAPTURED + 1,
            ),
            MemoryProfileConfig(log_dir=str(path / "memory"), profile_every_n_steps=20),
        ],
        lr=0.01,
    )
    loader = [*make_loader(STEPS_PER_EPOCH - 1), make_batch(4, seed=99)]
    trainer.train_model(loader, make_loader(1, seed=50), num_epochs=NUM_EPOCHS)
    return path


def command(*arguments: str | Path) -> list[str]:
    """The words that start the real command."""
    return [sys.executable, "-m", "trackside.cli", *map(str, arguments)]


def call(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the real command in a separate process, piped, in 80 columns."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=plain_environment(environment),
    )


def plain_environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """The environment without what would change colours and widths."""
    unwanted: Sequence[str] = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TRACKSIDE_DEBUG", "LINES")
    return {**{name: value for name, value in os.environ.items() if name not in unwanted}, **(more or {})}
