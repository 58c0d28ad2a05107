"""Batches stacked for one call: together or one by one, with the same values."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.tree_util import tree_flatten

from trackside.fusing.batch_stack import BatchForm, BatchList, BatchStack
from trackside.trainer import Batch

NUM = 6


def _arrays(number: int, dtype: Any = np.float32, size: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.standard_normal((size, 4)).astype(dtype), rng.integers(0, 9, size)


class _Own(np.ndarray):
    """An array of another class."""


ALIKE: dict[str, Callable[[int], Any]] = {
    "tuples": _arrays,
    "batches": lambda number: Batch(*_arrays(number)),
    "nested": lambda number: {"a": [_arrays(number)], "none": None},
    "one array": lambda number: _arrays(number)[0],
    "double precision": lambda number: _arrays(number, np.float64),
    "bfloat16": lambda number: _arrays(number, ml_dtypes.bfloat16),
    "views": lambda number: (_arrays(number)[0].T, _arrays(number)[1][::-1]),
    "without elements": lambda number: (np.zeros((0, 4), np.float32), np.zeros((3, 0), np.float32)),
    "numbers": lambda number: (_arrays(number)[0], np.float32(number)),
    "arrays without dimensions": lambda number: (_arrays(number)[0], np.array(number)),
    "of a class of their own": lambda number: (_arrays(number)[0].view(_Own), _arrays(number)[1]),
    "in part on the device": lambda number: (jnp.asarray(_arrays(number)[0]), _arrays(number)[1]),
}


def _stack(batches: list[Any]) -> BatchStack:
    form = BatchForm.of(*tree_flatten(batches[0]))
    assert form is not None
    stack = BatchStack(form, NUM)
    stack.begin()
    return stack


@pytest.mark.parametrize("kind", ALIKE)
def test_together_or_one_by_one(kind: str) -> None:
    """Batches that are added at once are where they would be if each had been added by itself."""
    batches = [ALIKE[kind](number) for number in range(NUM)]
    each, together = _stack(batches), _stack(batches)
    assert all(each.add(*tree_flatten(batch)) for batch in batches)
    assert together.add(*tree_flatten(batches[0]))
    assert together.add_all(batches[1:4]) == 3
    assert together.add_all([]) == 0
    assert together.add_all(batches[4:]) == 2
    expected, found = (tree_flatten(stack.stacked()) for stack in (each, together))
    assert found[1] == expected[1]
    for one, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


OTHERS: dict[str, list[Any]] = {
    "sizes that make up for each other": [_arrays(7, size=2), _arrays(8, size=4)],
    "another type": [_arrays(7, np.float64)],
    "another structure": [list(_arrays(7))],
    "another number of arrays": [(*_arrays(7), _arrays(7)[1])],
    "all on the device": [jax.tree.map(jnp.asarray, _arrays(7))],
    "bytes in the other order": [_arrays(7, ">f4")],
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("num_before", [0, 2])
def test_batches_of_another_form_are_left(kind: str, num_before: int) -> None:
    """What was added ends before the first batch of another form, and what was there stays as it was."""
    batches = [_arrays(number) for number in range(NUM)]
    stack = _stack(batches)
    stack.add(*tree_flatten(batches[0]))
    assert stack.add_all([*batches[1 : 1 + num_before], *OTHERS[kind], batches[5]]) == num_before
    for place, leaf in enumerate(stack.stacked()):
        expected = np.stack([batch[place] for batch in batches[: 1 + num_before]])
        np.testing.assert_array_equal(leaf[: 1 + num_before], expected)


@pytest.fixture
def on_device() -> list[Any]:
    return [jax.tree.map(jnp.asarray, _arrays(number)) for number in range(3)]


def test_batches_on_the_device(on_device: list[Any]) -> None:
    """Batches on the device are listed up to the first that is elsewhere."""
    form = BatchForm.of(*tree_flatten(on_device[0]))
    assert form is not None
    listed = BatchList(form, 4)
    listed.begin()
    assert listed.add_all([*on_device, _arrays(4)]) == 3
    assert listed.stacked() == (*on_device, on_device[-1])


def test_batches_on_a_device_that_is_the_host(on_device: list[Any]) -> None:
    """They are collected as on any device, and stacked in the end."""
    form = BatchForm.of(*tree_flatten(on_device[0]))
    assert form is not None
    listed = BatchList(form, 4, BatchStack(form, 4))
    listed.begin()
    assert listed.add_all([*on_device, _arrays(4)]) == 3
    for place, leaf in enumerate(listed.stacked()):
        np.testing.assert_array_equal(leaf[:3], np.stack([batch[place] for batch in on_device]))


@pytest.mark.parametrize(
    ("batch", "is_listed"),
    [
        (lambda: _arrays(0), (False, False)),
        (lambda: jax.tree.map(jnp.asarray, _arrays(0)), (True, False)),
        (lambda: (jax.random.key(0), jnp.zeros(3)), (True, True)),
        (lambda: (jnp.zeros(3), jnp.full(3, 0.5)), (True, True)),
        (lambda: (jnp.zeros(3, jnp.bfloat16), jnp.zeros(3, bool)), (True, False)),
    ],
)
def test_what_a_call_takes_as_it_is(batch: Callable[[], Any], is_listed: tuple[bool, bool]) -> None:
    """Arrays of an accelerator, and on a CPU what NumPy cannot hold."""
    form = BatchForm.of(*tree_flatten(batch()))
    assert form is not None
    assert (form.is_listed(device_is_host=False), form.is_listed(device_is_host=True)) == is_listed


def test_a_type_that_gives_way_is_another_form() -> None:
    """In a program, an array of such a type may lead to other types than one whose type is its own."""
    weak, strong = (jnp.full(3, 0.5),), (jnp.full(3, 0.5, jnp.float32),)
    forms = [BatchForm.of(*tree_flatten(batch)) for batch in (weak, strong)]
    fits = [[form is not None and form.fits(*tree_flatten(batch)) for batch in (weak, strong)] for form in forms]
    assert fits == [[True, False], [False, True]]
    assert BatchForm.of(*tree_flatten((*weak, np.zeros(3, np.float32)))) is None
