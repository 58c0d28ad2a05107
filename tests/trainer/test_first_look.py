"""A look at the first batch of a loader loses none, whatever kind of loader it is."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import optax
import pytest
import torch.utils.data
from tqdm import tqdm

from trackside.callbacks import Callback
from trackside.errors import DataError
from trackside.trainer import ParallelConfig, Trainer, TrainerConfig

NUM_BATCHES = 4


def to_batch(number: int) -> dict[str, np.ndarray]:
    return {"x": np.full((1, 1), number, np.float32)}


BATCHES = [to_batch(number) for number in range(1, NUM_BATCHES + 1)]


class SameIterator:
    """Gives the same iterator each time."""

    def __init__(self) -> None:
        self.iterator = iter(BATCHES)

    def __iter__(self) -> Iterator[Any]:
        return self.iterator


class OverGenerator:
    """Gives a new iterator each time, all of which read one generator."""

    def __init__(self) -> None:
        self.batches = (batch for batch in BATCHES)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            yield dict(batch)


class OverGeneratorWithLength(OverGenerator):
    """The same, with a length."""

    def __len__(self) -> int:
        return NUM_BATCHES


class ByEpoch:
    """Has to be told the epoch before each pass."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.is_told = False

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)
        self.is_told = True

    def __iter__(self) -> Iterator[Any]:
        assert self.is_told
        self.is_told = False
        return iter(BATCHES)


class FromStream(torch.utils.data.IterableDataset):
    """A data set of PyTorch that can be read once."""

    def __init__(self) -> None:
        self.numbers = iter(range(1, NUM_BATCHES + 1))

    def __iter__(self) -> Iterator[Any]:
        return ({"x": torch.full((1,), float(number))} for number in self.numbers)


ONE_SHOT: dict[str, Callable[[], Iterable]] = {
    "iterator of a list": lambda: iter(BATCHES),
    "generator": lambda: (batch for batch in BATCHES),
    "zip": lambda: zip(*[[batch["x"] for batch in BATCHES]] * 2, strict=True),
    "map": lambda: map(dict, BATCHES),
    "chain": lambda: itertools.chain(BATCHES[:2], BATCHES[2:]),
    "tqdm of a generator": lambda: tqdm((batch for batch in BATCHES), disable=True),
    "tqdm with a bar": lambda: tqdm(batch for batch in BATCHES),
    "same iterator": SameIterator,
    "over a generator": OverGenerator,
    "over a generator, with a length": OverGeneratorWithLength,
    "torch, of a stream": lambda: torch.utils.data.DataLoader(FromStream(), batch_size=1),
}
RESTARTS: dict[str, Callable[[], Iterable]] = {
    "list": lambda: BATCHES,
    "tqdm of a list": lambda: tqdm(BATCHES, disable=True),
    "torch": lambda: torch.utils.data.DataLoader(BATCHES, batch_size=None),  # type: ignore[arg-type]
}


class Seen(Callback):
    """The numbers of the batches of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []

    def on_training_step(self, step_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        self.numbers.append(round(step_metrics["number"]))


def loss_fn(model: Any, batch: Any, rng: Any) -> Any:
    batch = {"x": batch[0]} if isinstance(batch, tuple) else batch
    loss = (model(batch["x"]) ** 2).mean()
    return loss, {"number": batch["x"].mean(), "sum": {"value": batch["x"].sum(), "count": 1.0}}


def make_trainer(**config: Any) -> Trainer:
    return Trainer(
        (lambda key, x: {"w": np.zeros((), np.float32)}, lambda params, x: params["w"] + x),
        loss_fn,
        optax.sgd(1e-3),
        config=TrainerConfig(enable_progress_bar=False, default_train_log_modes=["single"], **config),
        parallel=ParallelConfig(data_axis_size=1),
    )


@pytest.mark.parametrize("num_ahead", [0, 2])
@pytest.mark.parametrize("kind", [*ONE_SHOT, *RESTARTS])
def test_training_has_every_batch_in_order(kind: str, num_ahead: int) -> None:
    """The batch that shows the shapes is the first that is trained on."""
    trainer, seen = make_trainer(prefetch_batches=num_ahead), Seen()
    trainer.fit({**ONE_SHOT, **RESTARTS}[kind](), num_epochs=1, callbacks=seen)
    assert seen.numbers == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", [*ONE_SHOT, *RESTARTS])
def test_validation_has_every_batch(kind: str) -> None:
    """A trial before training takes nothing from the first validation."""
    train = list(ONE_SHOT["zip"]()) if kind == "zip" else BATCHES
    result = make_trainer().fit(train, {**ONE_SHOT, **RESTARTS}[kind](), num_epochs=1)
    assert result["val"]["sum"] == 2.5


@pytest.mark.parametrize("kind", [*ONE_SHOT, *RESTARTS])
def test_evaluation_and_prediction_have_every_batch(kind: str) -> None:
    """Also those that build the trainer."""
    make = {**ONE_SHOT, **RESTARTS}[kind]
    assert make_trainer().evaluate(make())["sum"] == 2.5
    assert make_trainer().evaluate({"a": make(), "b": make()})["b_sum"] == 2.5
    assert make_trainer().predict(make()).ravel().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", RESTARTS)
def test_a_loader_that_starts_again_does(kind: str) -> None:
    """Each epoch is a whole pass."""
    trainer, seen = make_trainer(), Seen()
    trainer.fit(RESTARTS[kind](), num_epochs=2, callbacks=seen)
    assert seen.numbers == [1, 2, 3, 4] * 2


@pytest.mark.parametrize("kind", ONE_SHOT)
def test_a_second_epoch_of_what_can_be_read_once(kind: str) -> None:
    """There is none, which is said in words."""
    trainer = make_trainer()
    with pytest.raises(DataError, match=r"train_loader: gave no batch at step 5 in epoch 2.*can be read only once"):
        trainer.fit(ONE_SHOT[kind](), num_epochs=2)
    assert trainer.module.global_step == 4


def test_a_summary_loses_none_of_the_training() -> None:
    """What was looked at for a summary is trained on."""
    trainer, loader, seen = make_trainer(), OverGenerator(), Seen()
    trainer.summary(loader)
    trainer.fit(loader, num_epochs=1, callbacks=seen)
    assert seen.numbers == [1, 2, 3, 4]


def test_a_loader_is_told_the_epoch_before_the_look() -> None:
    """One that needs to know the epoch of each pass knows that of the look."""
    loader, seen = ByEpoch(), Seen()
    trainer = make_trainer()
    trainer.summary(loader)
    trainer.fit(loader, num_epochs=2, callbacks=seen)
    assert seen.numbers == [1, 2, 3, 4] * 2
    assert loader.told == [0, 0, 0, 1]


def test_a_class_with_epochs_in_place_of_a_loader() -> None:
    """It is named as such."""
    with pytest.raises(DataError, match="train_loader: expected an iterable of batches, got the class ByEpoch; call"):
        make_trainer().fit(ByEpoch, num_epochs=1)  # type: ignore[arg-type]
