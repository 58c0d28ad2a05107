"""Loaders with worker processes give the batches that a plain loop reads, also to a training that resumes."""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from absl import flags

from tests.trainer.tiny import Linear, make_trainer
from tests.trainer.worker_loaders import NUM_BATCHES, ToBatch, data_loader, iter_dataset
from trackside.callbacks import Callback
from trackside.schedule import Every
from trackside.trainer import TrainerModule

NUM_EPOCHS = 2


class NumberTrainer(TrainerModule):
    """Shows by a metric which batch it was given."""

    def batch_to_input(self, batch: Any) -> Any:
        return batch["inputs"]

    def loss_function(self, params: Any, apply_fn: Callable, batch: Any, rng: Any, train: bool = True) -> Any:
        loss = ((apply_fn({"params": params}, batch["inputs"], train=train) - batch["targets"]) ** 2).mean()
        return loss, ({"loss": loss, "number": batch["inputs"].sum()}, None)


class Witness(Callback):
    """Remembers which batch each step was given, and what a checkpoint after each would hold."""

    plan = Every(1, "saved")

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[float] = []
        self.saved: dict[int, tuple[Any, str]] = {}

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        self.numbers.append(step_metrics["number"])

    def on_settled(self, epoch_idx: int, step_idx: int) -> None:
        progress: Any = self.trainer.progress  # type: ignore[attr-defined]
        self.saved[step_idx] = jax.device_get(progress.carry), json.dumps(progress.to_record(0.0))


@pytest.mark.slow
@pytest.mark.parametrize(("make", "step"), [(data_loader, NUM_BATCHES - 1), (iter_dataset, NUM_BATCHES)])
def test_workers_change_nothing(make: Callable[..., Any], step: int) -> None:
    """Batches that worker processes make come in order, and from the right one on after a resume.

    Each of the two is resumed at another step: a pass takes seconds, until its workers have started.
    """
    flags.FLAGS.mark_as_parsed()  # grain's workers read absl flags, which no command line has parsed here
    trainer = make_trainer(NumberTrainer, Linear, ToBatch().map(1), lr=1e-3)
    whole = Witness()
    trainer.fit(make(), num_epochs=NUM_EPOCHS, callbacks=[whole])
    final = jax.device_get(trainer.progress.carry)

    one_pass = [batch["inputs"].item() for batch in make(num_workers=0)]
    assert sorted(one_pass) == [1, 2, 3]
    assert whole.numbers == one_pass * NUM_EPOCHS
    carry, record = whole.saved[step][0], json.loads(whole.saved[step][1])
    trainer.progress.restore(jax.device_put(carry, trainer.engine.carry_shardings), record, record["loaders"]["train"])
    resumed = Witness()
    trainer.fit(make(), num_epochs=NUM_EPOCHS, callbacks=[resumed])
    assert resumed.numbers == whole.numbers[step:]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(trainer.progress.carry), final)
