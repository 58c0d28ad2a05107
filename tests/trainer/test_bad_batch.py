"""A batch that is not finite: the training stops before it does harm, and goes on once the batch is mended."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer.tiny import make_loader, make_trainer, rows_of
from trackside.callbacks import CheckpointConfig
from trackside.errors import DataError
from trackside.logger import LoggerConfig
from trackside.trainer import Batch

NUM_BATCHES = 6
NUM_EPOCHS = 2


class Stream(list):
    """A loader whose batches are poisoned at the given steps, counted over its passes, or that fails at one."""

    def __init__(self, bad_steps: tuple[int, ...] = (), fails_at: int = -1, num_done: int = 0):
        super().__init__(make_loader(NUM_BATCHES))
        self.bad_steps, self.fails_at, self.num_done = bad_steps, fails_at, num_done

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            self.num_done += 1
            if self.num_done == self.fails_at:
                raise OSError("the disk is gone")
            yield poisoned(batch) if self.num_done in self.bad_steps else batch


def poisoned(batch: Batch) -> Batch:
    inputs = batch.inputs.copy()
    inputs[0, 0] = np.nan
    return Batch(inputs, batch.targets)


def build(root: Path, every_n_steps: int = 2, **config: Any) -> Any:
    return make_trainer(
        logger=LoggerConfig(log_path=root),
        callbacks=[CheckpointConfig(every_n_steps=every_n_steps)],
        resume="auto",
        **config,
    )


def train(trainer: Any, loader: list[Batch]) -> Any:
    trainer.train_model(loader, num_epochs=NUM_EPOCHS)
    return trainer


def steps_of(root: Path) -> list[int]:
    return [row["step"] for row in rows_of(root, mode="train")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return train(build(tmp_path_factory.mktemp("whole")), Stream())


def assert_same_state(trainer: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, trainer.state.params, other.state.params)
    jax.tree.map(np.testing.assert_array_equal, trainer.state.opt_state, other.state.opt_state)


@pytest.mark.parametrize("bad_step", [1, 4, 9])
def test_training_goes_on_once_the_batch_is_mended(tmp_path: Path, undisturbed: Any, bad_step: int) -> None:
    """From the checkpoint before the bad step, wherever that is, to the very bits of a run that never met it."""
    stopped = train(build(tmp_path), Stream((bad_step,)))
    assert stopped.status == "nan"
    num_rows = len(steps_of(tmp_path))
    resumed = train(build(tmp_path), Stream())
    assert steps_of(tmp_path)[num_rows] == (bad_step - 1) // 2 * 2 + 1
    assert (resumed.status, resumed.global_step) == ("success", NUM_BATCHES * NUM_EPOCHS)
    assert_same_state(resumed, undisturbed)


def test_batch_that_is_not_mended(tmp_path: Path) -> None:
    """Rerun with the same bad batch, the training stops at the same step, and its checkpoint is the same."""
    for _ in range(3):
        train(build(tmp_path), Stream((5,)))
    assert [row["step"] for row in rows_of(tmp_path, "non_finite")] == [5, 5, 5]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "4"]


def test_status_names_the_bad_step(tmp_path: Path) -> None:
    """The run's last row says nan at the very step, though others were on their way behind it."""
    train(build(tmp_path), Stream((9,)))
    status = rows_of(tmp_path, "status")[-1]
    assert (status["status"], status["step"]) == ("nan", 9)


def test_no_checkpoint_after_the_bad_step(tmp_path: Path) -> None:
    """Where every step is saved, the latest checkpoint is that of the step before the bad one."""
    train(build(tmp_path, every_n_steps=1, max_inflight_steps=4), Stream((9,)))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["7", "8"]


# --- batches that are skipped ---------------------------------------------------------------------------------------

# Two in the first epoch, on both sides of the cut and of the checkpoint before it, and one in the second.
BAD_STEPS = (2, 5, 8)
CUT_AT = 5


@pytest.fixture(scope="module")
def skipping(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A training that skips bad batches, and was not cut."""
    root = tmp_path_factory.mktemp("skipping")
    return train(build(root, skip_bad_batches=True), Stream(BAD_STEPS)), root


@pytest.fixture(scope="module")
def skipping_in_legs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The same, cut between the two bad batches of its first epoch and resumed."""
    root = tmp_path_factory.mktemp("legs")
    with pytest.raises(OSError, match="disk is gone"):
        train(build(root, skip_bad_batches=True), Stream(BAD_STEPS, fails_at=CUT_AT))
    # A list is brought to its place by passing over batches, so the stream counts from its beginning again.
    return train(build(root, skip_bad_batches=True), Stream(BAD_STEPS)), root


def test_skipping_goes_on_bit_identically(skipping: tuple[Any, Path], skipping_in_legs: tuple[Any, Path]) -> None:
    """Batches that are skipped make no difference between a run in one leg and in two."""
    assert_same_state(skipping_in_legs[0], skipping[0])


def skipped_by_epoch(root: Path) -> dict[int, int]:
    return {row["epoch"]: row["num_batches"] for row in rows_of(root, "skipped")}


@pytest.mark.parametrize("run", ["skipping", "skipping_in_legs"])
def test_skipped_batches_are_counted_by_epoch(run: str, request: pytest.FixtureRequest) -> None:
    """The event file counts those of each epoch, of a cut one over all of its legs."""
    assert skipped_by_epoch(request.getfixturevalue(run)[1]) == {1: 2, 2: 1}


@pytest.mark.parametrize("run", ["skipping", "skipping_in_legs"])
def test_skipped_batches_are_in_the_rows(run: str, request: pytest.FixtureRequest) -> None:
    """The rows of the skipped steps say so, and no other row does."""
    rows = {row["step"]: row["values"] for row in rows_of(request.getfixturevalue(run)[1], mode="train")}
    assert tuple(step for step, values in rows.items() if values["skipped_mean"] > 0) == BAD_STEPS


def test_share_of_skipped_batches_in_an_epoch_survives(
    skipping: tuple[Any, Path], skipping_in_legs: tuple[Any, Path]
) -> None:
    """The epoch's row has the same share of skipped batches in one leg and in two."""
    shares = [
        [row["values"]["skipped_mean"] for row in rows_of(root, mode="train_epoch")]
        for _, root in (skipping, skipping_in_legs)
    ]
    assert shares[0] == shares[1] == pytest.approx([2 / NUM_BATCHES, 1 / NUM_BATCHES])


def test_arrays_in_place_of_batches_are_refused() -> None:
    """Arrays that were not cut into batches are told apart from loaders in training, evaluation and prediction."""
    trainer, data = make_trainer(), (np.zeros((32, 4), np.float32), np.zeros((32, 1), np.float32))
    for use in (lambda: trainer.fit(data), lambda: trainer.eval_model(data, "eval", 0), lambda: trainer.predict(data)):
        with pytest.raises(DataError, match="expected an iterable of batches, got a tuple of arrays"):
            use()
