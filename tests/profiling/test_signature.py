import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from trackside.profiling.signature import (
    NO_CHANGE,
    Change,
    diff,
    diff_to_nearest,
    jitted_name,
    signature_of,
    suggest,
    summarize,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Batch:
    inputs: object
    mode: str = dataclasses.field(default="train", metadata={"static": True})


class Carry(NamedTuple):
    params: dict


def step(carry, batch, *rest, scale=1.0):
    raise NotImplementedError


def changes_between(before, after, function=step):
    return diff(signature_of(before, function=function), signature_of(after, function=function))


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def test_paths_carry_the_names_of_the_arguments():
    """Leaves are called as the user would write them, by position, by keyword and beyond the named ones."""
    carry = Carry({"Dense_0": {"kernel": zeros(2, 2)}})
    signature = signature_of((carry, Batch(zeros(2)), zeros(1)), {"scale": 2.0}, step)
    assert list(signature.leaves) == ["carry.params['Dense_0']['kernel']", "batch.inputs", "rest[0]", "scale"]


def test_arguments_without_names_are_counted():
    """Without a function, and for one that has no signature, arguments are counted."""
    assert list(signature_of((zeros(1), [zeros(1)])).leaves) == ["args[0]", "args[1][0]"]
    assert list(signature_of((zeros(1),), function=dict).leaves) == ["args[0]"]


MESH = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
SPLIT, WHOLE = NamedSharding(MESH, PartitionSpec("data")), NamedSharding(MESH, PartitionSpec())
LEAVES = {
    "shape": (lambda: zeros(8, 2), lambda: zeros(7, 2), "(8, 2)", "(7, 2)"),
    "dtype": (lambda: zeros(8), lambda: zeros(8, dtype=np.int32), "float32", "int32"),
    "weak_type": (lambda: 0.5, lambda: np.float32(0.5), "True", "False"),
    "sharding": (
        lambda: jax.device_put(zeros(8), SPLIT),
        lambda: jax.device_put(zeros(8), WHOLE),
        "P('data',) on {'data': 8}",
        "P() on {'data': 8}",
    ),
    "committed": (lambda: zeros(8), lambda: jax.device_put(zeros(8), jax.devices()[1]), "uncommitted", "cpu:1"),
    "static": (lambda: "relu", lambda: "gelu", "'relu'", "'gelu'"),
    "structure": (lambda: None, lambda: zeros(8), "absent", "float32[8]"),
}


@pytest.mark.parametrize("kind", LEAVES)
def test_each_kind_of_change_is_named(kind):
    """A change of any kind is reported with the leaf's path, what it was and what it is."""
    make_old, make_new, old, new = LEAVES[kind]
    changes = changes_between((1, Batch(make_old())), (1, Batch(make_new())))
    assert changes == [Change("batch.inputs", kind, old, new)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(zeros(3), jnp.zeros(3), id="from the host or from the device"),
        pytest.param(zeros(3), zeros(3, dtype=np.float64), id="of a width that JAX narrows"),
        pytest.param(zeros(3), jax.ShapeDtypeStruct((3,), np.float32), id="an array or its description"),
    ],
)
def test_what_one_compile_serves_is_equal(before, after):
    """Arguments that JAX takes as the same do not differ."""
    assert changes_between((before, 1), (after, 1)) == []


def test_consumed_arrays_can_be_described():
    """An array that a call has taken for its own is described as it was before."""
    consume = jax.jit(lambda x: x + 1, donate_argnums=0)
    array = jax.device_put(zeros(4), jax.devices()[1])
    before = signature_of((array,))
    consume(array)
    assert array.is_deleted()
    assert diff(before, signature_of((array,))) == []


def test_static_arguments_of_a_jitted_function_are_compared_whole():
    """Static arguments are taken from jit, by number and by name; other numbers may have any value."""
    function = jax.jit(lambda x, sizes, lr: x, static_argnums=1)
    assert changes_between((1.0, (8, 8), 0.1), (2.0, (8, 8), 0.2), function) == []
    (change,) = changes_between((1.0, (8, 8), 0.1), (2.0, (8, 4), 0.2), function)
    assert change == Change("sizes", "static", "(8, 8)", "(8, 4)")


def test_values_are_blamed_only_where_nothing_else_is():
    """Where it is not known what is static, a number's value counts only if nothing else has changed."""
    assert [change.kind for change in changes_between((1, 2), (1, 3))] == ["static"]
    assert [change.path for change in changes_between((zeros(8), 2), (zeros(7), 3))] == ["carry"]


def test_static_fields_of_containers_are_a_change_of_structure():
    """A container whose static data has changed is named, although its leaves are the same."""
    (change,) = changes_between((1, Batch(zeros(2))), (1, Batch(zeros(2), mode="eval")))
    assert (change.path, change.kind) == ("batch", "structure")
    assert "train" in change.old
    assert "eval" in change.new


def test_passing_by_keyword_is_a_change_of_structure():
    """JAX compiles again for an argument that is passed by keyword, so the change is named."""
    old, new = signature_of((1, 2), function=step), signature_of((1,), {"batch": 2}, step)
    assert diff(old, new) == [Change("batch", "structure", "positional", "by keyword")]


def test_odd_objects_do_not_raise():
    """Values that can be neither hashed nor shown are described by their type."""

    class Odd:
        __hash__ = None  # type: ignore[assignment]

        def __repr__(self):
            raise RuntimeError

    assert str(signature_of((Odd(),)).leaves["args[0]"]) == "<Odd>"


def test_the_nearest_signature_is_compared_with():
    """Of several earlier signatures the most similar one explains the change."""
    earlier = [signature_of((zeros(8), zeros(8))), signature_of((zeros(4), zeros(4), zeros(4)))]
    (change,) = diff_to_nearest(earlier, signature_of((zeros(8), zeros(7))))
    assert (change.path, change.old) == ("args[1]", "(8,)")


def test_what_matters_most_comes_first():
    """A new structure comes before a new shape, whatever the order of arguments; many changes are cut."""
    changes = changes_between((zeros(8), {"a": 1}), (zeros(7), {"a": 1, "b": 1}))
    assert [change.kind for change in changes] == ["structure", "shape"]
    assert summarize([changes[1]] * 5).endswith("carry: shape (8,) -> (7,); and 2 more")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change("batch.x", "shape", "(8, 4)", "(7, 4)"), "last batch, pad `batch.x` to 8 or drop the remainder"),
        (Change("batch.x", "shape", "(8, 4)", "(8, 5)"), "one shape"),
        (Change("batch.x", "shape", "()", "(5,)"), "one shape"),
        (Change("batch.x", "dtype", "float32", "int32"), "Cast `batch.x`"),
        (Change("lr", "weak_type", "True", "False"), "jnp.asarray(x, dtype)"),
        (Change("params", "sharding", "a", "b"), "in_shardings"),
        (Change("params", "committed", "a", "b"), "Commit `params`"),
        (Change("size", "static", "1", "2"), "not static"),
        (Change("mask", "structure", "absent", "float32[]"), "`mask` in the same way each time"),
    ],
)
def test_each_kind_of_change_has_a_suggestion(change, words):
    """What to do depends on what has changed."""
    assert words in suggest([change])


def test_no_change_has_a_suggestion():
    """Where the arguments are as before, other causes are named."""
    assert suggest([]) == NO_CHANGE


def test_the_name_of_compiles_is_that_of_the_jitted_function():
    """Only for a function of `jax.jit` is the name of its compiles known."""
    assert (jitted_name(jax.jit(step)), jitted_name(step), jitted_name(None)) == ("step", None, None)
