"""A training to be killed: `python -m tests.trainer.survival_script RUN_FOLDER NUM_WORKERS [SIGNAL AT_STEP]`.

With the last two it validates, logs to every tool, and sends itself the signal after that step, or fails there with
signal 0. Step 0 is never. `PREFETCH_BATCHES` says how many batches it reads ahead.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
from absl import flags

from tests.trainer.tiny import WEIGHTS, make_loader, make_trainer
from trackside.callbacks import Callback, CallbackConfig, CheckpointConfig, LearningRateMonitorConfig
from trackside.logger import FileLoggerConfig, LoggerConfig, TensorBoardLoggerConfig, WandBLoggerConfig
from trackside.trainer import Batch
from trackside.trainer.workers import exit_with_parent

NUM_EPOCHS = 3
STEPS_PER_EPOCH = 40
SAVED_EVERY = 7

# What W&B measures of the machine by itself has no place in a test.
QUIET = {"x_disable_stats": True, "x_disable_meta": True}
TOOLS = [FileLoggerConfig(), TensorBoardLoggerConfig(), WandBLoggerConfig(mode="offline", settings=QUIET)]


def to_batch(inputs: np.ndarray) -> Batch:
    return Batch(inputs, inputs @ WEIGHTS)


def make_dataset(num_workers: int) -> grain.IterDataset:
    source = np.random.default_rng(0).standard_normal((320, 4)).astype(np.float32)
    dataset = grain.MapDataset.source(source).seed(3).shuffle().batch(8).map(to_batch).to_iter_dataset()
    if num_workers:
        options = grain.MultiprocessingOptions(num_workers=num_workers)
        dataset = dataset.mp_prefetch(options, worker_init_fn=exit_with_parent)
    return dataset


@dataclass
class SignalConfig(CallbackConfig):
    """Which signal to send after which step."""

    signal: int = 0
    at_step: int = 0

    def create(self, trainer: Any, data_module: Any = None) -> "Signal":
        return Signal(self, trainer, data_module)


class Signal(Callback):
    config: SignalConfig

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        if step_idx == self.config.at_step:
            if not self.config.signal:
                raise RuntimeError("failed as it was told to")
            os.kill(os.getpid(), self.config.signal)


def of_signalled(number: int, at_step: int) -> list[CallbackConfig]:
    """A second row for each step, and the signal."""
    return [LearningRateMonitorConfig(every_n_steps=1), SignalConfig(signal=number, at_step=at_step)]


def build(root: Path, signalled: list[int]) -> Any:
    return make_trainer(
        logger=LoggerConfig(log_path=root, log_every_n_steps=1, log_tools=TOOLS if signalled else []),
        callbacks=[
            CheckpointConfig(every_n_steps=SAVED_EVERY, save_top_k=2),
            *(of_signalled(*signalled) if signalled else []),
        ],
        resume="auto",
        lr=0.01,
        prefetch_batches=int(os.environ.get("PREFETCH_BATCHES", "0")),
    )


def train(trainer: Any, num_workers: int, val_loader: list[Batch] | None = None) -> list[str]:
    """Train to the end, and give the final parameters, bit by bit."""
    trainer.train_model(make_dataset(num_workers), val_loader, num_epochs=NUM_EPOCHS, steps_per_epoch=STEPS_PER_EPOCH)
    leaves = jax.tree.leaves(trainer.state.params)
    return [float(number).hex() for leaf in leaves for number in np.asarray(leaf).ravel()]


def without_torch() -> None:
    """Keep tensorboardX from importing torch and a cloud's client, which takes longer than the training."""
    sys.modules.update({"torch": None, "google.cloud.storage": None})  # type: ignore[dict-item]


def main() -> None:
    without_torch()
    flags.FLAGS.mark_as_parsed()  # grain's workers read absl flags, which no command line has parsed here
    root, num_workers, signalled = Path(sys.argv[1]), int(sys.argv[2]), [int(number) for number in sys.argv[3:5]]
    trainer = build(root, signalled)
    print("READY", flush=True)
    print("FINAL", train(trainer, num_workers, make_loader(1, seed=50) if signalled else None), flush=True)


if __name__ == "__main__":
    main()
