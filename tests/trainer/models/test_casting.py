"""What is cast around a call of a model, and what is not."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from trackside.trainer import FunctionModel, ModelConfig
from trackside.trainer.models import adapter_for
from trackside.trainer.models.casting import Casting, in_types_of

HALF, FULL = jnp.dtype("bfloat16"), jnp.dtype("float32")
CASTING = Casting(HALF, FULL)
X = np.ones((2, 4), np.float32)
SEEN: list[Any] = []
"""The types that a model has seen, call by call."""


def types_of(tree: Any) -> list[str]:
    return [str(leaf.dtype) for leaf in jax.tree.leaves(tree)]


def test_floating_point_arrays_are_cast_and_nothing_else() -> None:
    """Integers, keys, complex numbers, flags and objects that hold state pass as they are."""
    kept = Casting(HALF, FULL, kept=(eqx.nn.State,))
    state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="batch")[1]
    given = {
        "x": X,
        "ids": np.arange(2),
        "key": jax.random.key(0),
        "c": jnp.ones(1, jnp.complex64),
        "flag": True,
        "state": state,
    }
    cast = kept.to_compute(given)
    assert cast["x"].dtype == HALF
    assert all(cast[name] is given[name] for name in ("ids", "key", "c", "flag", "state"))


def test_variables_keep_their_types() -> None:
    """What a model computes for its state in another type is stored in that of the state."""
    before = {"stats": {"mean": jnp.zeros(2), "count": jnp.zeros((), jnp.int32)}, "other": jnp.zeros(2)}
    after = {"stats": {"mean": jnp.ones(2, HALF), "count": jnp.ones(())}, "new": jnp.ones(2, HALF)}
    kept = in_types_of(before, after)
    assert types_of(kept["stats"]) == ["float32", "float32"]  # an integer that became a float is the model's mistake
    assert kept["new"].dtype == HALF


class LinenParts(nn.Module):
    def setup(self) -> None:
        self.first, self.last = nn.Dense(3), nn.Dense(1)

    def encode(self, x: Any) -> Any:
        SEEN.append((x.dtype, self.first.variables["params"]["kernel"].dtype if not self.is_initializing() else None))
        return self.first(x)

    def __call__(self, x: Any) -> Any:
        return self.last(self.encode(x))


class NnxParts(nnx.Module):
    def __init__(self) -> None:
        self.first, self.last = (nnx.Linear(*sizes, rngs=nnx.Rngs(0)) for sizes in ((4, 3), (3, 1)))

    def encode(self, x: Any) -> Any:
        SEEN.append((x.dtype, self.first.kernel[...].dtype))
        return self.first(x)

    def __call__(self, x: Any) -> Any:
        hidden = self.encode(x)
        SEEN.append((hidden.dtype, self.last.kernel[...].dtype))
        return self.last(hidden)


class EquinoxParts(eqx.Module):
    first: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self) -> None:
        self.first, self.last = (eqx.nn.Linear(*sizes, key=jax.random.key(0)) for sizes in ((4, 3), (3, 1)))

    def encode(self, x: Any) -> Any:
        SEEN.append((x.dtype, self.first.weight.dtype))
        return self.first(x)

    def __call__(self, x: Any) -> Any:
        hidden = self.encode(x)
        SEEN.append((hidden.dtype, self.last.weight.dtype))
        return self.last(hidden)


def use(model: Any, body: Callable, library: str) -> Any:
    adapter = adapter_for(model, ModelConfig(library=library), CASTING)
    variables = adapter.init({"params": jax.random.key(0)}, X)
    params = variables.pop("params")
    SEEN.clear()
    return adapter.use(params, variables, {}, False, lambda model, state: (body(model), state))[0]


@pytest.mark.parametrize(
    ("library", "model", "mapped"),
    [
        ("linen", LinenParts, lambda call: call),
        ("nnx", NnxParts, lambda call: call),
        ("equinox", EquinoxParts, jax.vmap),
    ],
)
def test_calls_from_outside_are_cast_and_calls_inside_are_not(library: str, model: type, mapped: Callable) -> None:
    """Of `__call__`, another method and a layer alike, arguments are cast, and results come back in float32."""
    outputs = [use(model(), lambda one: mapped(one)(X), library)]
    assert set(SEEN) == {(HALF, HALF)}
    outputs.append(use(model(), lambda one: mapped(one.encode)(X), library))
    assert set(SEEN) == {(HALF, HALF)}
    outputs.append(use(model(), lambda one: mapped(one.first)(X), library))
    assert {one.dtype for one in outputs} == {FULL}
    rounded = [one.astype(HALF).astype(FULL) for one in outputs[1:]]
    for one, exact in zip(outputs[1:], rounded, strict=True):  # it was computed in bfloat16
        np.testing.assert_array_equal(one, exact)


def test_state_of_plain_functions_is_not_cast() -> None:
    """The state goes in and out as it is, next to inputs and outputs that are cast."""

    def apply(params: Any, state: Any, x: Any) -> Any:
        SEEN.append((params.dtype, state.dtype, x.dtype))
        return x * params, state + 1

    model = FunctionModel(lambda key, x: (jnp.ones(()), jnp.zeros((), FULL)), apply, has_state=True)
    adapter = adapter_for(model, ModelConfig(), Casting(HALF, HALF))
    SEEN.clear()
    output, updates = adapter.use(jnp.ones(()), {"state": jnp.zeros(())}, {}, True, lambda one, state: one(state, X))
    assert SEEN == [(HALF, FULL, HALF)]
    assert (output.dtype, updates["state"].dtype) == (HALF, FULL)


def test_users_model_is_left_alone() -> None:
    """Classes and arrays of the model that was passed are as before."""
    model = EquinoxParts()
    use(model, lambda one: jax.vmap(one)(X), "equinox")
    assert type(model) is EquinoxParts
    assert type(model.first) is eqx.nn.Linear
    assert model.first.weight.dtype == FULL
