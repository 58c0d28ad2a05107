"""Batches of PyTorch's own loaders, whose tensors JAX does not know."""

from collections.abc import Iterator
from typing import Any

import jax
import ml_dtypes
import numpy as np
import optax
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.tiny import make_trainer
from trackside.errors import DataError
from trackside.trainer import Batch, ParallelConfig, Trainer, TrainerConfig
from trackside.trainer.torch_batches import with_arrays

INPUTS, TARGETS = (np.random.default_rng(0).standard_normal((24, width)).astype(np.float32) for width in (4, 1))


def by_default(batch_size: int = 4) -> DataLoader:
    """A loader as people write it, which gives lists of tensors."""
    return DataLoader(TensorDataset(torch.tensor(INPUTS), torch.tensor(TARGETS)), batch_size=batch_size)


def arrays(batch_size: int = 4) -> list[list[np.ndarray]]:
    """The same batches as arrays."""
    return [[INPUTS[at : at + batch_size], TARGETS[at : at + batch_size]] for at in range(0, len(INPUTS), batch_size)]


def linear() -> Any:
    return lambda key, inputs: {"w": jax.random.normal(key, (4, 1))}, lambda params, inputs: inputs @ params["w"]


def mse(model: Any, batch: Any, rng: Any) -> Any:
    inputs, targets = batch
    return ((model(inputs) - targets) ** 2).mean()


@pytest.mark.parametrize("prefetch_batches", [0, 2])
@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_a_loader_of_tensors_trains_as_one_of_arrays(steps_per_call: int, prefetch_batches: int) -> None:
    """Training and validation take a `DataLoader` as it is, with the results of the same arrays."""
    results = []
    for make in (by_default, arrays):
        config = TrainerConfig(steps_per_call=steps_per_call, prefetch_batches=prefetch_batches)
        trainer = Trainer(linear(), mse, optax.sgd(0.1), config=config, parallel=ParallelConfig(data_axis_size=1))
        found = trainer.fit(make(), make(), num_epochs=2)
        results.append((found["train"]["loss_mean"], found["val"]["loss"]))
    assert results[0] == results[1]


def test_evaluate_and_predict() -> None:
    """Both take tensors, before any training too."""
    tensors, numbers = (Trainer(linear(), mse, optax.sgd(0.1)) for _ in range(2))
    assert tensors.evaluate(by_default())["loss"] == numbers.evaluate(arrays())["loss"]
    np.testing.assert_array_equal(tensors.predict(by_default()), numbers.predict(arrays()))


def test_the_example_batch_may_hold_tensors() -> None:
    """A trainer with configs is built with a batch of the loader as it is."""
    trainer = make_trainer(batch=Batch(torch.tensor(INPUTS[:8]), torch.tensor(TARGETS[:8])))
    assert isinstance(trainer.exmp_batch.inputs, np.ndarray)


def test_nothing_is_copied() -> None:
    """An array shares the memory of its tensor; what is no tensor is left alone."""
    tensor, other = torch.zeros(3), np.zeros(3)
    found = with_arrays({"a": tensor, "b": other})
    tensor[0] = 1
    assert found["a"][0] == 1
    assert found["b"] is other


def test_bfloat16() -> None:
    """A type that numpy does not have becomes the one that JAX uses."""
    found = with_arrays(torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert found.dtype == ml_dtypes.bfloat16
    assert found.astype(np.float32).tolist() == [1.5, -2.0]


def test_tensors_of_other_loaders_are_named() -> None:
    """A generator that gives tensors is an error that says what to write."""

    def generate() -> Iterator[Any]:
        yield from by_default()

    with pytest.raises(DataError, match=r"batch: 0 is a tensor of PyTorch; let the loader give tensor.numpy\(\)"):
        Trainer(linear(), mse, optax.sgd(0.1)).fit(generate())
