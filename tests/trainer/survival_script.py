"""A training to be killed: `python -m tests.trainer.survival_script RUN_FOLDER NUM_WORKERS`."""

import sys
from pathlib import Path

import grain
import jax
import numpy as np
from absl import flags

from tests.trainer.tiny import WEIGHTS, make_trainer
from trackside.callbacks import CheckpointConfig
from trackside.logger import LoggerConfig
from trackside.trainer import Batch
from trackside.trainer.workers import exit_with_parent

NUM_EPOCHS = 3


def to_batch(inputs: np.ndarray) -> Batch:
    return Batch(inputs, inputs @ WEIGHTS)


def make_dataset(num_workers: int) -> grain.IterDataset:
    source = np.random.default_rng(0).standard_normal((320, 4)).astype(np.float32)
    dataset = grain.MapDataset.source(source).seed(3).shuffle().batch(8).map(to_batch).to_iter_dataset()
    if num_workers:
        options = grain.MultiprocessingOptions(num_workers=num_workers)
        dataset = dataset.mp_prefetch(options, worker_init_fn=exit_with_parent)
    return dataset


def main() -> None:
    flags.FLAGS.mark_as_parsed()  # grain's workers read absl flags, which no command line has parsed here
    root, num_workers = Path(sys.argv[1]), int(sys.argv[2])
    trainer = make_trainer(
        logger=LoggerConfig(log_path=root, log_every_n_steps=1),
        callbacks=[CheckpointConfig(every_n_steps=7, save_top_k=2)],
        resume="auto",
        lr=0.01,
    )
    print("READY", flush=True)
    trainer.train_model(make_dataset(num_workers), num_epochs=NUM_EPOCHS, steps_per_epoch=40)
    leaves = jax.tree.leaves(trainer.state.params)
    print("FINAL", [float(number).hex() for leaf in leaves for number in np.asarray(leaf).ravel()], flush=True)


if __name__ == "__main__":
    main()
