"""How the examples of a batch are counted."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trackside.measured_run.first_array import find_first_array


@jax.tree_util.register_pytree_node_class
class Pair:
    """A container whose parts JAX can only number."""

    def __init__(self, first: Any, second: Any):
        self.parts = first, second

    def tree_flatten(self) -> tuple[Any, None]:
        return self.parts, None

    @classmethod
    def tree_unflatten(cls, aux: None, parts: Any) -> "Pair":
        return cls(*parts)


class Named(NamedTuple):
    inputs: Any
    targets: Any


KINDS: dict[str, Callable[[int], Any]] = {
    "an array": lambda size: np.zeros((size, 2)),
    "on the device": lambda size: (jnp.zeros((size, 2)), jnp.zeros(size)),
    "tuple": lambda size: (np.zeros((size, 2)), np.zeros(3 * size)),
    "named": lambda size: Named(np.zeros(size), np.zeros(2)),
    "nested": lambda size: {"a": [{"b": np.zeros(size)}]},
    "a number first": lambda size: {"a": 0.5, "b": np.float32(1), "c": np.zeros(size)},
    "a container without keys": lambda size: Pair(np.zeros(size), np.zeros(7 * size)),
    "a container without keys inside": lambda size: {"a": Pair(np.float32(1), np.zeros(size)), "b": np.zeros(7 * size)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_examples_are_the_length_of_the_first_array(kind: str) -> None:
    """What is learnt from one batch counts another of the same form, whatever its size."""
    get, length_of = find_first_array(KINDS[kind](4))
    assert [length_of(get(KINDS[kind](size))) for size in (4, 6, 1)] == [4, 6, 1]


def test_a_batch_without_arrays() -> None:
    """It has no examples."""
    get, length_of = find_first_array({"a": 0.5})
    assert length_of(get({"a": 0.5})) == 0
