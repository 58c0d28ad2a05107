"""A training to be watched: `python -m tests.cli.watched_script RUN_FOLDER NUM_STEPS`, a few milliseconds each."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.trainer.tiny import make_batch, make_trainer
from trackside.logger import LoggerConfig
from trackside.trainer import Batch


class SlowLoader:
    """Batches that take a while."""

    def __init__(self, num_batches: int):
        self.num_batches = num_batches

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Batch]:
        for seed in range(self.num_batches):
            time.sleep(0.005)
            yield make_batch(8, seed)


if __name__ == "__main__":
    trainer = make_trainer(logger=LoggerConfig(log_path=Path(sys.argv[1]), log_every_n_steps=5), lr=0.01)
    trainer.train_model(SlowLoader(int(sys.argv[2])), num_epochs=1)
