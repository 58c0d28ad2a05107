"""Every kind of loader gives the batches that a plain loop would read, also to a training that resumes."""

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
from tests.trainer.number_trainings import (
    NUM_EPOCHS,
    VAL,
    VALIDATIONS,
    Keeper,
    MakeLoader,
    Witness,
    begin,
    check_kind,
    fit,
    make_number_trainer,
    make_shared_trainer,
)
from trackside.callbacks import CheckpointConfig, ModelCheckpoint


@pytest.fixture(scope="module")
def trainer() -> Any:
    """One trainer for the whole table."""
    return make_shared_trainer()


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
