import collections
from typing import NamedTuple

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from trackside.errors import CheckpointError, DataError
from trackside.trainer.loaders import restore_loaders
from trackside.trainer.saved_training import restore_carry
from trackside.trainer.sharding import ParallelConfig, build_mesh
from trackside.trainer.train_state import Carry


class Moments(NamedTuple):
    second: jax.Array
    first: jax.Array


def make_carry(opt_state=None):
    params = {"dense": {"kernel": jnp.zeros((8, 2)), "bias": jnp.zeros(2)}}
    stats = {"batch_stats": {"mean": jnp.zeros(2)}}
    return Carry(jnp.zeros((), jnp.int32), params, stats, opt_state, jax.random.key_data(jax.random.key(0)))


def shardings_of(carry):
    mesh = build_mesh(ParallelConfig())
    return jax.tree.map(
        lambda leaf: NamedSharding(mesh, PartitionSpec("dp") if leaf.ndim == 2 else PartitionSpec()), carry
    )


def restored(carry, state_dict, is_pruned=False):
    return restore_carry(carry, shardings_of(carry), state_dict, is_pruned)


SAVED = {"dense": {"kernel": np.full((8, 2), 3.0, np.float32), "bias": np.ones(2, np.float32)}}


def test_params_are_put_where_the_current_ones_belong():
    """Restored arrays have the saved values and the trainer's sharding; what was not saved stays."""
    carry = make_carry()
    new = restored(carry, {"params": SAVED})
    kernel = new.params["dense"]["kernel"]
    np.testing.assert_array_equal(kernel, SAVED["dense"]["kernel"])
    assert [shard.data.shape for shard in kernel.addressable_shards] == [(1, 2)] * 8
    assert new.mutable_variables is carry.mutable_variables


def test_whole_state_is_restored():
    """Step, statistics and key come back beside the parameters, a typed key as its data."""
    key = jax.random.key(7)
    state = {
        "params": SAVED,
        "step": 5,
        "rng": key,
        "mutable_variables": {"batch_stats": {"mean": np.array([1, 2], np.float32)}},
    }
    new = restored(make_carry(), state)
    assert (int(new.step), new.step.dtype) == (5, jnp.int32)
    np.testing.assert_array_equal(new.rng, jax.random.key_data(key))
    np.testing.assert_array_equal(new.mutable_variables["batch_stats"]["mean"], [1, 2])


def test_containers_are_those_of_the_current_state():
    """Saved lists and dicts take the form of the tuples and named tuples that the optimizer has."""
    carry = make_carry((Moments(jnp.zeros(2), jnp.zeros(2)), optax.EmptyState()))
    new = restored(
        carry,
        {
            "params": SAVED,
            "opt_state": [collections.OrderedDict(second=np.ones(2, np.float32), first=np.zeros(2, np.float32)), ()],
        },
    )
    assert jax.tree.structure(new.opt_state) == jax.tree.structure(carry.opt_state)


def test_leaves_are_found_by_path_and_not_by_order():
    """A named tuple that was saved as a dict, whose keys come in another order, is restored field by field."""
    carry = make_carry((Moments(jnp.zeros(2), jnp.zeros(2)),))
    saved = {"0": {"first": np.array([1, 1], np.float32), "second": np.array([2, 2], np.float32)}}
    new = restored(carry, {"params": SAVED, "opt_state": saved})
    np.testing.assert_array_equal(new.opt_state[0].first, [1, 1])
    np.testing.assert_array_equal(new.opt_state[0].second, [2, 2])


def test_misfit_lists_every_path_with_both_shapes():
    """A state that does not fit is an error with each path that differs and what is there on either side."""
    saved = {"dense": {"kernel": np.zeros((8, 3), np.float32), "scale": np.zeros(2, np.int32)}}
    with pytest.raises(CheckpointError) as caught:
        restored(make_carry(), {"params": saved})
    assert str(caught.value).splitlines() == [
        "the saved params do not fit the model:",
        "  dense/bias: missing in the saved state, float32[2] in the model",
        "  dense/kernel: float32[8, 3] in the saved state, float32[8, 2] in the model",
        "  dense/scale: int32[2] in the saved state, not there in the model",
    ]


def test_misfit_of_another_dtype_is_refused():
    """Parameters of another precision are not cast silently."""
    saved = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), SAVED)
    with pytest.raises(CheckpointError, match=r"dense/bias: bfloat16\[2\] in the saved state, float32\[2\]"):
        restored(make_carry(), {"params": saved})


def test_misfit_of_a_bare_array_is_named():
    """An array that is not part of a tree is named by what it is."""
    with pytest.raises(CheckpointError, match=r"rng: uint32\[4\] in the saved state, uint32\[2\] in the model"):
        restored(make_carry(), {"params": SAVED, "rng": np.zeros(4, np.uint32)})


def test_long_list_of_misfits_is_cut():
    """Of very many differences, the first are shown and the rest counted."""
    saved = {**SAVED, **{f"extra_{at:02}": np.zeros(1, np.float32) for at in range(25)}}
    with pytest.raises(CheckpointError, match=r"extra_19: .*\n  and 5 more$"):
        restored(make_carry(), {"params": saved})


def test_state_without_params_is_refused():
    """A dict that is no state is an error with the keys that it has."""
    with pytest.raises(CheckpointError, match=r"expected the key 'params', got \['weights'\]"):
        restored(make_carry(), {"weights": SAVED})


def test_pruned_state_leaves_the_optimizer_aside():
    """A state that only evaluates takes the parameters of a full checkpoint and ignores its optimizer."""
    new = restored(make_carry(), {"params": SAVED, "opt_state": (np.ones(3),)}, is_pruned=True)
    assert new.opt_state is None
    np.testing.assert_array_equal(new.params["dense"]["bias"], [1, 1])


def test_state_without_statistics_fits_a_model_without():
    """Models without mutable variables are saved with None or an empty dict, which is the same."""
    carry = make_carry()._replace(mutable_variables={})
    assert restored(carry, {"params": SAVED, "mutable_variables": None}).mutable_variables == {}


def iterator():
    return iter(grain.MapDataset.source(range(10)).to_iter_dataset())


def test_grain_iterator_continues_where_it_was_saved():
    """A grain iterator that is given a saved position goes on with the next element."""
    first = iterator()
    assert [next(first) for _ in range(4)] == [0, 1, 2, 3]
    second = iterator()
    restore_loaders({"train": first.get_state()}, {"train": second, "val": None})
    assert [next(second) for _ in range(2)] == [4, 5]


def test_dicts_of_loaders_are_restored_by_key():
    """Each loader of a dict gets the position under its key; one without a saved position starts anew."""
    saved = iterator()
    next(saved)
    loaders = {"a": iterator(), "b": iterator()}
    restore_loaders({"val": {"a": saved.get_state()}}, {"train": None, "val": loaders})
    assert (next(loaders["a"]), next(loaders["b"])) == (1, 0)


def test_loaders_with_state_dicts_are_restored():
    """A loader with `load_state_dict`, as PyTorch's stateful loaders have it, is given its state."""

    class Stateful:
        position = 0

        def load_state_dict(self, state):
            self.position = state["position"]

    loader = Stateful()
    restore_loaders({"train": {"position": 3}}, {"train": loader})
    assert loader.position == 3


def test_position_for_a_loader_without_one_is_an_error():
    """A saved position for a loader that cannot take it is refused by the loader's name and type."""
    with pytest.raises(DataError, match=r"loader 'train': .*list has neither set_state nor load_state_dict"):
        restore_loaders({"train": {"next_index": 3}}, {"train": [1, 2, 3]})
    with pytest.raises(DataError, match=r"loader 'val/a': "):
        restore_loaders({"val": {"a": {"next_index": 3}}}, {"val": {"a": [1, 2, 3]}})


def test_loader_without_a_saved_position_is_left_alone():
    """Where no position was saved, any loader will do."""
    restore_loaders({"train": None}, {"train": [1, 2, 3], "val": [4]})
