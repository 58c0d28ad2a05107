"""Every kind of loader gives the batches that a plain loop would read, also to a training that resumes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer.loader_kinds import (
    PASSES,
    STREAMS,
    Endless,
    EndlessWithoutState,
    Reshuffling,
    plain_numbers,
    to_batch,
)
from tests.trainer.tiny import Linear, make_trainer
from trackside.callbacks import Callback, CheckpointConfig, ModelCheckpoint
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


@pytest.fixture(scope="module")
def trainer() -> Any:
    """One trainer for the whole table, so that the step compiles once; with its state from before the first step."""
    trainer = make_number_trainer()
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


@pytest.mark.parametrize("validation", VALIDATIONS)
@pytest.mark.parametrize("kind", PASSES)
def test_an_epoch_is_a_pass(trainer: Any, kind: str, validation: str) -> None:
    """Without `steps_per_epoch` each epoch is one pass, wherever the training was stopped in between."""
    check_kind(trainer, PASSES[kind], None, *VALIDATIONS[validation])


@pytest.mark.parametrize("kind", PASSES | STREAMS)
def test_an_epoch_is_a_number_of_steps(trainer: Any, kind: str) -> None:
    """With `steps_per_epoch` pass follows pass, across the ends of epochs, wherever the training was stopped."""
    check_kind(trainer, (PASSES | STREAMS)[kind], 4, *VALIDATIONS["by both"])


@pytest.mark.parametrize("validation", VALIDATIONS)
def test_a_number_of_steps_with_each_validation(trainer: Any, validation: str) -> None:
    """How a stream is validated changes nothing about its batches."""
    check_kind(trainer, PASSES["restarting"], 4, *VALIDATIONS[validation])


@pytest.mark.parametrize("make", [Endless, EndlessWithoutState])
def test_an_epoch_of_an_endless_loader_is_its_length(trainer: Any, make: MakeLoader) -> None:
    """A loader with a length that never ends continues from epoch to epoch, and no batch is lost in between."""
    keeper = Keeper()
    begin(trainer, 1, -1)
    whole = fit(trainer, make(), None, keeper)
    assert whole.numbers == list(range(1, 10))
    for step in keeper.saved:
        keeper.restore(trainer, step)
        assert fit(trainer, make(), None).numbers == whole.numbers[step:]


@pytest.mark.parametrize("steps_per_epoch", [None, 4])
@pytest.mark.parametrize("kind", PASSES)
def test_cut_epoch_continues(trainer: Any, kind: str, steps_per_epoch: int | None) -> None:
    """An epoch that `num_train_steps` cut is continued by the next call, and by a training that resumes there."""
    make = PASSES[kind]
    expected = plain_numbers(make(), NUM_EPOCHS, steps_per_epoch)
    for cut_at in (3, 4, 5):
        begin(trainer, 1, -1)
        loader, witness, keeper = make(), Witness(), Keeper()
        trainer.fit(loader, VAL, num_train_steps=cut_at, steps_per_epoch=steps_per_epoch, callbacks=[witness, keeper])
        assert witness.numbers + fit(trainer, loader, steps_per_epoch).numbers == expected, f"cut at {cut_at}"
        if cut_at in keeper.saved:
            keeper.restore(trainer, cut_at)
            assert witness.numbers + fit(trainer, make(), steps_per_epoch).numbers == expected, f"resumed at {cut_at}"


@pytest.mark.parametrize("kind", ["own iterator, state, length", "state, told the epoch", "grain iter dataset"])
def test_through_checkpoints(tmp_path: Path, kind: str) -> None:
    """A new trainer that finds a checkpoint from the end of an epoch trains on the same batches to the same end."""
    make, witnesses, finals = PASSES[kind], [], []
    for every_n_steps in (6, -1):
        trainer = make_number_trainer(resume="auto")
        saving = CheckpointConfig(
            dirpath=str(tmp_path), monitor="val_loss", every_n_steps=every_n_steps, every_n_epochs=-1
        )
        witnesses.append(fit(trainer, make(), None, ModelCheckpoint(saving)))
        finals.append(jax.device_get(trainer.progress.carry))
    assert witnesses[1].numbers == witnesses[0].numbers[6:]
    assert witnesses[1].validated == [9]
    jax.tree.map(np.testing.assert_array_equal, *finals)


def test_order_that_cannot_be_restored(trainer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A loader that counts its own epochs and has no position cannot be continued exactly, and the log says so."""
    keeper = Keeper()
    begin(trainer, 1, -1)
    whole = fit(trainer, Reshuffling(), None, keeper)
    assert whole.numbers == plain_numbers(Reshuffling(), NUM_EPOCHS, None)
    keeper.restore(trainer, 4)
    fit(trainer, Reshuffling(), None)
    assert "train_loader (Reshuffling) has no position that can be restored" in caplog.text


class FailingAtItsEnd:
    """Has a length, and fails when it is read beyond its last batch."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        yield from [to_batch(1), to_batch(2)]
        raise OSError("the connection was lost")


def test_error_at_the_end_of_a_pass(trainer: Any) -> None:
    """An error that a loader raises after its last batch is not swallowed."""
    begin(trainer, 1, -1)
    with pytest.raises(OSError, match="the connection was lost"):
        fit(trainer, FailingAtItsEnd(), None)
