"""Two trainings at the same time in one process."""

import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer.tiny import make_loader, make_trainer
from trackside.callbacks import CheckpointConfig
from trackside.logger import LoggerConfig
from trackside.trainer.checkpoint_store import CheckpointStore

NUM_STEPS = 8


def build(folder: Path) -> Any:
    return make_trainer(
        logger=LoggerConfig(log_path=folder),
        callbacks=[CheckpointConfig(every_n_steps=1, every_n_epochs=-1, save_top_k=-1)],
        resume="auto",
    )


@pytest.mark.slow
def test_both_save_every_step(tmp_path: Path) -> None:
    """Every step of both is saved and intact, though they save at the same time; so are their parameters."""
    trainers = {name: build(tmp_path / name) for name in ("first", "second")}
    both_are_ready = threading.Barrier(len(trainers))
    failures: list[BaseException] = []

    def train(trainer: Any, seed: int) -> None:
        try:
            both_are_ready.wait()
            trainer.train_model(make_loader(NUM_STEPS, seed=seed), num_epochs=1)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=train, args=(trainer, 100 * seed)) for seed, trainer in enumerate(trainers.values())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for seed, (name, trainer) in enumerate(trainers.items()):
        store = CheckpointStore(tmp_path / name / "checkpoints")
        assert store.steps() == list(range(1, NUM_STEPS + 1))
        for step in store.steps():
            store.verify(step)
        alone = make_trainer()
        alone.train_model(make_loader(NUM_STEPS, seed=100 * seed), num_epochs=1)
        jax.tree.map(np.testing.assert_array_equal, alone.state.params, trainer.state.params)
        again = make_trainer()
        again.load_pretrained_model(tmp_path / name)
        jax.tree.map(np.testing.assert_array_equal, again.state.params, trainer.state.params)
