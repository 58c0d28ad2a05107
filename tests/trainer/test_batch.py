import copy
import pickle
from dataclasses import dataclass, field, fields
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trackside.errors import DataError
from trackside.measured_run.batch_size import batch_size
from trackside.trainer.batch import Batch, check_leaves


@dataclass
class Masked(Batch):
    mask: Any = None


@flax.struct.dataclass
class Documents(Batch):
    position: Any = None
    source: str = flax.struct.field(pytree_node=False, default="web")


@dataclass
class Named(Batch):
    name: str = field(default="train", metadata={"static": True})
    num_seen: int = field(default=0, init=False)


class Undecorated(Batch):
    weight: Any = None


UNDECORATED: Any = Undecorated  # type checkers do not see that it becomes a dataclass


ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def test_batch_is_a_pytree_of_its_fields():
    """Inputs and targets are the leaves, in this order, and a tree map gives a batch back."""
    batch = Batch(inputs=ROWS, targets=np.ones(6))
    assert [leaf.shape for leaf in jax.tree.leaves(batch)] == [(6, 2), (6,)]
    mapped = jax.tree.map(lambda leaf: leaf + 1, batch)
    assert isinstance(mapped, Batch)
    assert np.array_equal(mapped.targets, np.full(6, 2.0))


@pytest.mark.parametrize(
    ("batch", "extra"),
    [
        (Masked(ROWS, ROWS[:, 0], mask=np.ones(6, np.float32)), "mask"),
        (Documents(ROWS, ROWS[:, 0], position=np.ones(6, np.float32)), "position"),
        (UNDECORATED(ROWS, ROWS[:, 0], weight=np.ones(6, np.float32)), "weight"),
    ],
    ids=["dataclass", "flax.struct.dataclass", "undecorated"],
)
def test_subclass_with_more_fields_goes_through_jit(batch, extra):
    """A subclass with fields of its own enters and leaves jit as itself, whatever makes it a dataclass."""
    result = jax.jit(lambda batch: jax.tree.map(lambda leaf: leaf * 2, batch))(batch)
    assert type(result) is type(batch)
    assert [field.name for field in fields(result)][:3] == ["inputs", "targets", extra]
    np.testing.assert_array_equal(result.inputs, ROWS * 2)
    np.testing.assert_array_equal(getattr(result, extra), np.full(6, 2.0))


@pytest.mark.parametrize("batch", [Documents(ROWS, ROWS, source="books"), Named(ROWS, ROWS, name="books")])
def test_fields_marked_as_static_are_no_leaves(batch):
    """A field that is marked as static, in JAX's or in Flax's way, is part of the structure."""
    leaves, structure = jax.tree.flatten(batch)
    assert all(isinstance(leaf, np.ndarray) for leaf in leaves)
    assert "books" in str(structure)
    assert jax.tree.unflatten(structure, leaves) == batch


def test_subclasses_do_not_share_their_fields():
    """Registering one subclass leaves the others and the base with the leaves that they have."""
    assert len(jax.tree.leaves(Masked(1, 2, mask=3))) == 3
    assert len(jax.tree.leaves(Batch(1, 2))) == 2


def test_slice_takes_the_same_rows_of_every_leaf():
    """`batch[:n]` cuts all leaves, nested ones included, and is a batch of the same class."""
    part = Masked({"a": ROWS, "b": [ROWS[:, 0]]}, jnp.arange(6), mask=np.ones(6))[:4]
    assert isinstance(part, Masked)
    assert [leaf.shape for leaf in jax.tree.leaves(part)] == [(4, 2), (4,), (4,), (4,)]
    np.testing.assert_array_equal(part.targets, [0, 1, 2, 3])


def test_slice_of_shapes_is_shapes():
    """A batch of `jax.ShapeDtypeStruct` is cut without any array."""
    shapes = Batch(jax.ShapeDtypeStruct((6, 2), jnp.bfloat16), jax.ShapeDtypeStruct((6,), np.int32))
    part = shapes[1:4]
    assert part == Batch(jax.ShapeDtypeStruct((3, 2), jnp.bfloat16), jax.ShapeDtypeStruct((3,), np.int32))


def test_slice_leaves_scalars_alone():
    """A leaf without a batch dimension is the same in every part."""
    part = Masked(ROWS, ROWS, mask=np.float32(0.5))[:2]
    assert (part.inputs.shape, part.mask) == ((2, 2), 0.5)


def test_replace_gives_a_changed_copy():
    """`replace` changes the given fields of a copy."""
    batch = Masked(ROWS, ROWS, mask=1)
    changed = batch.replace(mask=2)
    assert (type(changed), changed.mask, batch.mask) == (Masked, 2, 1)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])
def test_batches_can_be_copied_and_sent_to_processes(duplicate):
    """Copies and pickled batches, as worker processes send them, are equal pytrees."""
    batch = duplicate(Masked(ROWS, ROWS, mask=ROWS))
    assert jax.tree.structure(batch) == jax.tree.structure(Masked(0, 0, mask=0))
    np.testing.assert_array_equal(batch.mask, ROWS)


def test_batch_size_is_the_common_length():
    """The number of examples is the leaves' length; scalars do not count."""
    assert batch_size(Masked(ROWS, jnp.ones(6), mask=0.5)) == 6
    assert batch_size({"x": jax.ShapeDtypeStruct((3, 4), np.float32)}) == 3


def test_differing_lengths_are_refused_by_leaf():
    """Leaves of different lengths are an error that gives each leaf's path and length."""
    with pytest.raises(DataError, match=r"differ: \{'inputs/a': 6, 'targets': 5\}"):
        batch_size(Batch({"a": ROWS}, np.ones(5)))


def test_batch_without_arrays_is_refused():
    """A batch in which nothing has a batch dimension has no size."""
    with pytest.raises(DataError, match=r"at least one array with a leading batch dimension, got Batch\("):
        batch_size(Batch(1.0, None))


@flax.struct.dataclass
class Tokens(Batch):
    positions: Any


@flax.struct.dataclass
class PackedTokens(Tokens):
    segments: Any


@flax.struct.dataclass(kw_only=True)
class Weighted(Masked):
    weight: Any


def test_flax_dataclass_over_two_levels() -> None:
    """Fields of every level are there, in order, also if no instance of the level above was ever made."""
    batch = PackedTokens(ROWS, ROWS, ROWS, segments=ROWS + 1)
    assert [one.name for one in fields(batch)] == ["inputs", "targets", "positions", "segments"]
    assert len(jax.tree.leaves(batch)) == 4
    assert [one.name for one in fields(Tokens(ROWS, ROWS, ROWS))] == ["inputs", "targets", "positions"]


def test_flax_dataclass_with_keywords_only() -> None:
    """A field without a default may follow one with a default, where it is to be passed by its name."""
    batch = Weighted(ROWS, ROWS, weight=ROWS)
    assert (batch.mask, len(jax.tree.leaves(batch))) == (None, 3)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (">f4", r"inputs/a is an array of >f4, .*astype\(array.dtype.newbyteorder\('='\)\)"),
        (">i8", r"inputs/a is an array of >i8, .*astype\(array.dtype.newbyteorder\('='\)\)"),
        ("longdouble", r"inputs/a is an array of float128, .*astype\(np.float32\)"),
        ([("left", "f4")], r"inputs/a is an array of \[\('left', '<f4'\)\], .*its fields as arrays"),
        ("U3", r"inputs/a is an array of <U3; a batch holds arrays of numbers only"),
    ],
)
def test_numbers_that_jax_does_not_take_are_named(dtype: Any, message: str) -> None:
    """The error has the leaf, its type and what the loader has to give instead."""
    with pytest.raises(DataError, match=message):
        check_leaves(Batch({"a": np.zeros(6, dtype)}, ROWS))


@pytest.mark.parametrize("dtype", ["<f4", "float64", "bool", "uint8", "complex64", jnp.bfloat16, jnp.int4])
def test_numbers_that_jax_takes(dtype: Any) -> None:
    """They may be in a batch, and so may keys and Python's numbers."""
    check_leaves(Batch({"a": np.zeros(6, dtype), "key": jax.random.key(0)}, 1.5))
