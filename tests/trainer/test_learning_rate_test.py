"""The learning-rate range test: it finds a rate for any optimizer, and leaves the training as it is."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch.utils.data
from tqdm import tqdm

from tests.trainer.models.libraries import KITS, make_data
from tests.trainer.tiny import make_loader, make_trainer
from trackside.errors import ConfigError, DataError
from trackside.trainer import (
    OptimizerConfig,
    ParallelConfig,
    ParamGroupConfig,
    SchedulerConfig,
    Trainer,
    TrainerConfig,
)

BATCHES = make_loader(8)
DATA = make_data()


@pytest.fixture(autouse=True)
def optax_as_it_is() -> Iterator[None]:
    """Optax's own optimizers do not live with strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def short_trainer(optimizer: Any, library: str = "functions", **kwargs: Any) -> Trainer:
    config = TrainerConfig(enable_progress_bar=False, **kwargs.pop("config", {}))
    parallel = kwargs.pop("parallel", ParallelConfig(data_axis_size=1))
    return Trainer(KITS[library].plain(), KITS[library].loss, optimizer, config=config, parallel=parallel, **kwargs)


def test_rates_grow_until_the_loss_explodes() -> None:
    """The rates are those asked for, the suggestion lies between, and the test ends when the loss explodes."""
    test = make_trainer().find_learning_rate(BATCHES, lowest=1e-4, highest=100.0, num_steps=60)
    assert test.has_diverged
    assert len(test.losses) < 60
    np.testing.assert_allclose(test.learning_rates, np.geomspace(1e-4, 100, 60)[: len(test.losses)])
    assert test.suggestion is not None
    assert 1e-3 < test.suggestion < 1


def test_the_rates_are_really_used() -> None:
    """The losses are those of a plain loop with the same rates."""
    trainer = make_trainer()
    kernel, bias = (np.array(leaf) for leaf in jax.tree.leaves(trainer.state.params)[::-1])
    test = trainer.find_learning_rate(BATCHES, lowest=1e-3, highest=0.1, num_steps=10)
    expected = []
    for step, rate in enumerate(test.learning_rates):
        batch = BATCHES[step % len(BATCHES)]
        error = batch.inputs @ kernel + bias - batch.targets
        expected.append((error**2).mean())
        kernel = kernel - rate * 2 * batch.inputs.T @ error / len(error)
        bias = bias - rate * 2 * error.mean(0)
    np.testing.assert_allclose(test.losses, expected, rtol=1e-4)


def test_training_is_left_as_it_is() -> None:
    """State, optimizer, position and step are those from before, and the training continues as without a test."""
    tested, plain = make_trainer(optimizer="adam"), make_trainer(optimizer="adam")
    for trainer in (tested, plain):
        trainer.train_model(BATCHES, num_train_steps=4)
        if trainer is tested:
            before = trainer.tx
            trainer.find_learning_rate(BATCHES, num_steps=10)
            assert trainer.tx is before
        trainer.train_model(BATCHES, num_train_steps=8)
    for one, other in zip(jax.tree.leaves(tested.progress.carry), jax.tree.leaves(plain.progress.carry), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("library", ["nnx", "functions"])
def test_optax_optimizer_is_tested_by_multiples(library: str) -> None:
    """For an optimizer that hides its learning rate, multiples of it have the losses of the rates that they make."""
    multiples = short_trainer(optax.adam(1e-2), library).find_learning_rate(DATA, lowest=0.1, highest=10, num_steps=10)
    made = short_trainer(optax.sgd(1.0), library).find_learning_rate(
        DATA, lowest=1e-3, highest=0.1, num_steps=10, optimizer=optax.adam
    )
    assert (multiples.is_relative, made.is_relative) == (True, False)
    np.testing.assert_allclose(multiples.losses, made.losses, rtol=1e-4)


def test_optax_schedule_needs_a_function() -> None:
    """An optimizer with its own schedule is refused with what to pass instead; with that, it works."""
    trainer = short_trainer(optax.adam(optax.linear_schedule(0.0, 1e-2, 10)))
    with pytest.raises(ConfigError, match=r"it has a schedule of its own.*optimizer=lambda schedule"):
        trainer.find_learning_rate(DATA)
    assert trainer.find_learning_rate(DATA, num_steps=10, optimizer=optax.adam).learning_rates[0] == 1e-7


def test_config_with_warmup_and_groups() -> None:
    """The schedule of a config is replaced; a group with an optimizer of its own keeps the ratio of its rate."""

    def config(rate: float, warmup_steps: int) -> OptimizerConfig:
        own = OptimizerConfig(name="sgd", scheduler=SchedulerConfig(lr=rate / 10))
        group = ParamGroupConfig(name="last", patterns=["last"], optimizer=own)
        return OptimizerConfig("sgd", SchedulerConfig(lr=rate, warmup_steps=warmup_steps), groups=[group])

    first, second = (
        short_trainer(config(rate, steps)).find_learning_rate(DATA, lowest=1e-3, highest=0.1, num_steps=10)
        for rate, steps in ((1.0, 0), (1e-3, 5))
    )
    np.testing.assert_allclose(first.losses, second.losses, rtol=1e-5)


def test_eight_devices_and_microbatches_give_the_same_curve() -> None:
    """A split batch and split parameters have the losses of one device, within float tolerance."""
    axes = ParallelConfig(data_axis_size=2, fsdp_axis_size=2, fsdp_min_weight_size=8)
    alone, spread = (
        short_trainer(optax.adam(1e-2), parallel=parallel, config={"gradient_accumulate_steps": 2}).find_learning_rate(
            DATA, num_steps=10
        )
        for parallel in (ParallelConfig(data_axis_size=1), axes)
    )
    np.testing.assert_allclose(alone.losses, spread.losses, rtol=1e-3)


class Placed:
    """A loader that is its own iterator, with a position."""

    def __init__(self, batches: list[Any]):
        self.batches, self.index = batches, 0

    def __iter__(self) -> "Placed":
        return self

    def __next__(self) -> Any:
        if self.index == len(self.batches):
            raise StopIteration
        self.index += 1
        return self.batches[self.index - 1]

    def get_state(self) -> int:
        return self.index

    def set_state(self, state: int) -> None:
        self.index = state


def test_position_of_the_loader_is_put_back() -> None:
    """A loader that knows where it is is put back there."""
    loader = Placed(make_loader(20))
    next(loader)
    make_trainer().find_learning_rate(loader, num_steps=10)
    assert loader.index == 1


def test_the_batch_that_shows_the_shapes_is_tested_on() -> None:
    """A loader that can be read only once, but cannot be seen to be such a one, loses no batch."""
    taken = []

    def batches() -> Iterator[Any]:
        for batch in DATA * 2:
            taken.append(batch)
            yield batch

    trainer = short_trainer(optax.sgd(1e-3))
    test = trainer.find_learning_rate(tqdm(batches(), disable=True), lowest=1e-2, highest=1e-1, num_steps=12)
    assert len(test.losses) == len(taken) == 12


class ByEpoch:
    """Has to be told the epoch before each pass."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.num_passes = 0

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        self.num_passes += 1
        assert len(self.told) == self.num_passes
        return iter(BATCHES)


def test_a_loader_is_told_the_epoch() -> None:
    """A loader that needs to know the epoch of each pass hears which one the training is at."""
    trainer, loader = make_trainer(), ByEpoch()
    trainer.train_model(loader, num_epochs=2)
    trainer.find_learning_rate(loader, highest=1e-3, num_steps=10)
    assert loader.told == [0, 1, 1, 1]


def test_tensors_of_every_pass_become_arrays() -> None:
    """A loader of PyTorch that has too few batches is read again as it was read before."""
    loader = torch.utils.data.DataLoader(DATA, batch_size=None)  # type: ignore[arg-type]
    test = short_trainer(optax.sgd(1e-3)).find_learning_rate(loader, highest=1.0, num_steps=10)
    assert len(test.losses) == 10


def test_loader_that_is_too_short() -> None:
    """A loader that ends after a few batches and cannot begin again is an error."""
    with pytest.raises(DataError, match="it ended after 3 batches"):
        make_trainer().find_learning_rate(iter(make_loader(3)), num_steps=10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lowest": 0.0}, "lowest: expected a finite number above 0"),
        ({"lowest": 1.0, "highest": 0.1}, "highest: expected a learning rate above lowest=1.0"),
        ({"num_steps": 3}, "num_steps: expected 10 or more, got 3"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    """An error names the argument and what is expected."""
    with pytest.raises(ConfigError, match=message):
        make_trainer().find_learning_rate(BATCHES, **arguments)
