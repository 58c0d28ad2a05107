"""Trainings that show which batch each step was given, and what a training that resumes is given.

`check_kind` holds a kind of loader against plain `for` loops, from every step that was kept.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tests.trainer.loader_kinds import plain_numbers, to_batch
from tests.trainer.tiny import Linear, make_trainer
from trackside.callbacks import Callback
from trackside.schedule import Every
from trackside.trainer import Batch, TrainerModule

NUM_EPOCHS = 3
SAVED_EVERY = 2
VAL = [to_batch(1)]
MakeLoader = Callable[[], Any]


class NumberTrainer(TrainerModule):
    """Learns next to nothing, and shows by a metric which batch it was given."""

    def loss_function(self, params: Any, apply_fn: Callable, batch: Batch, rng: Any, train: bool = True) -> Any:
        loss = ((apply_fn({"params": params}, batch.inputs, train=train) - batch.targets) ** 2).mean()
        return loss, ({"loss": loss, "number": batch.inputs.sum()}, None)


class Witness(Callback):
    """Remembers which batch each step was given and which steps were validated."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[float] = []
        self.validated: list[int] = []

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        self.numbers.append(step_metrics["number"])

    def on_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        self.validated.append(step_idx)


class Keeper(Callback):
    """Keeps what a checkpoint would hold, in memory, as JSON and arrays on the host."""

    plan = Every(SAVED_EVERY, "saved")

    def __init__(self) -> None:
        super().__init__()
        self.saved: dict[int, tuple[Any, str]] = {}

    def on_settled(self, epoch_idx: int, step_idx: int) -> None:
        if step_idx % SAVED_EVERY == 0:
            progress: Any = self.trainer.progress  # type: ignore[attr-defined]
            self.saved[step_idx] = jax.device_get(progress.carry), json.dumps(progress.to_record(0.0))

    def restore(self, trainer: Any, step: int) -> None:
        carry, plain = self.saved[step]
        record = json.loads(plain)
        carry = jax.device_put(carry, trainer.engine.carry_shardings)
        trainer.progress.restore(carry, record, record["loaders"]["train"])


def make_number_trainer(**config: Any) -> Any:
    return make_trainer(NumberTrainer, Linear, to_batch(1), lr=1e-3, **config)


def make_shared_trainer(**config: Any) -> Any:
    """One trainer for a whole table, so that the step compiles once; with its state from before the first step."""
    trainer = make_number_trainer(**config)
    trainer.initial = jax.device_get(trainer.progress.carry)
    return trainer


def begin(trainer: Any, val_every_n_epochs: int, val_every_n_steps: int) -> None:
    """Let the trainer begin again, with validations as given."""
    trainer.trainer_config.check_val_every_n_epoch = val_every_n_epochs
    trainer.trainer_config.check_val_every_n_steps = val_every_n_steps
    trainer.progress.begin_at(jax.device_put(trainer.initial, trainer.engine.carry_shardings), 0)


def fit(trainer: Any, loader: Any, steps_per_epoch: int | None, *callbacks: Callback) -> Witness:
    witness = Witness()
    trainer.fit(loader, VAL, num_epochs=NUM_EPOCHS, steps_per_epoch=steps_per_epoch, callbacks=[witness, *callbacks])
    return witness


def expected_validations(num_steps: int, epoch_length: int, every_n_epochs: int, every_n_steps: int) -> list[int]:
    return [
        step
        for step in range(1, num_steps + 1)
        if (every_n_epochs > 0 and step % epoch_length == 0) or (every_n_steps > 0 and step % every_n_steps == 0)
    ]


def check_kind(trainer: Any, make: MakeLoader, steps_per_epoch: int | None, by_epochs: int, by_steps: int) -> None:
    """Train, and resume from each step that was kept: as a plain loop, and as if the training had never stopped."""
    begin(trainer, by_epochs, by_steps)
    keeper = Keeper()
    whole = fit(trainer, make(), steps_per_epoch, keeper)
    final = jax.device_get(trainer.progress.carry)
    num_steps = trainer.global_step

    assert whole.numbers == plain_numbers(make(), NUM_EPOCHS, steps_per_epoch)
    assert num_steps == len(whole.numbers)
    assert whole.validated == expected_validations(num_steps, num_steps // NUM_EPOCHS, by_epochs, by_steps)
    assert list(keeper.saved) == list(range(SAVED_EVERY, num_steps + 1, SAVED_EVERY))
    for step in keeper.saved:
        keeper.restore(trainer, step)
        resumed = fit(trainer, make(), steps_per_epoch)
        assert resumed.numbers == whole.numbers[step:], f"resumed at {step}"
        assert resumed.validated == [one for one in whole.validated if one > step], f"resumed at {step}"
        assert trainer.global_step == num_steps, f"resumed at {step}"
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(trainer.progress.carry), final)


VALIDATIONS = {"by epochs": (1, -1), "by steps": (-1, 2), "by both": (1, 2)}
