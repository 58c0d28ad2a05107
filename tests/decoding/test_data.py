import jax.numpy as jnp
import numpy as np
import pytest
import torch

from trackside.decoding.data import data_set, open_epoch, slices, split_pair
from trackside.errors import DataError
from trackside.trainer import Batch


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray, torch.as_tensor], ids=["numpy", "jax", "torch"])
def test_data_sets_of_any_library(make):
    """They come out as numpy arrays with the same values."""
    inputs, targets = data_set((make(np.arange(6.0).reshape(3, 2)), make(np.arange(3.0))), "val_tensors")
    assert isinstance(inputs, np.ndarray)
    np.testing.assert_array_equal(inputs, np.arange(6.0).reshape(3, 2))
    np.testing.assert_array_equal(targets, np.arange(3.0))


def test_a_tensor_that_needs_gradients_is_taken():
    """Its values are what counts."""
    tensor = torch.ones(3, 2, requires_grad=True)
    assert data_set((tensor, tensor), "val_tensors").inputs.sum() == 6


def test_a_batch_object_is_a_pair():
    """Anything with inputs and targets is."""
    batch = Batch(np.zeros((3, 2)), np.ones((3, 1)))
    assert split_pair(batch, "batch").targets is batch.targets


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((np.zeros((3, 2)), np.zeros((4, 2))), "val_tensors: 3 inputs and 4 targets"),
        ((np.zeros(3), np.zeros(3), np.zeros(3)), r"val_tensors: expected the pair \(inputs, targets\), got 3 parts"),
        (np.zeros((2, 3)), "got an ndarray"),
        (([1, 2], np.zeros(2)), "inputs of val_tensors: expected an array of numpy, JAX or PyTorch, got a list"),
        ((np.zeros(()), np.zeros(())), "got a scalar"),
        ((np.zeros((0, 2)), np.zeros((0, 2))), "has no samples"),
    ],
)
def test_what_is_no_data_set_is_refused(pair, message):
    """The error names the argument and what it got."""
    with pytest.raises(DataError, match=message):
        data_set(pair, "val_tensors")


def test_an_empty_loader_is_refused():
    """It says that there was nothing at all."""
    with pytest.raises(DataError, match="train_loader: gave no batch at all"):
        list(open_epoch([], 1))


def test_an_exhausted_loader_is_refused():
    """An iterator that served the first epoch has nothing left for the second."""
    batches = iter([1, 2])
    assert list(open_epoch(batches, 1)) == [1, 2]
    with pytest.raises(DataError, match=r"gave no batch in epoch 2.*only once"):
        list(open_epoch(batches, 2))


def test_what_is_no_loader_is_refused():
    """By its type."""
    with pytest.raises(DataError, match="an int cannot be iterated over"):
        list(open_epoch(3, 1))  # pyright: ignore[reportArgumentType]


def test_slices_cover_everything_once():
    """The last one may be shorter, and without a size there is one."""
    assert [range(10)[part] for part in slices(10, 4)] == [range(4), range(4, 8), range(8, 10)]
    assert [range(10)[part] for part in slices(10, None)] == [range(10)]
