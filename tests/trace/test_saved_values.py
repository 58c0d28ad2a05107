"""What the forward pass leaves for the backward pass."""

from typing import Any

import jax
import jax.numpy as jnp

from trackside.trace.flops import needed_jaxpr
from trackside.trace.saved_values import saved_bytes

X = jax.ShapeDtypeStruct((4, 8), jnp.float32)
W = jax.ShapeDtypeStruct((8, 8), jnp.float32)
_ARRAY = 4 * 8 * 4


def saved_by(loss: Any, *args: Any) -> dict[str, int]:
    def step(*args: Any) -> Any:
        def scoped(*args: Any) -> Any:
            with jax.named_scope("loss"):
                return loss(*args)

        return jax.grad(scoped)(*args)

    return {"/".join(scope): size for scope, size in saved_bytes(needed_jaxpr(step, *args)).items()}


def test_values_count_for_the_scope_that_computes_them() -> None:
    """The output of a layer whose gradient needs it is saved once, under that layer; inputs of the program are not."""

    def loss(w: Any, x: Any) -> Any:
        with jax.named_scope("first"):
            x = jnp.exp(x @ w)
        with jax.named_scope("second"):
            return jnp.sum(2 * x)

    assert {name: size for name, size in saved_by(loss, W, X).items() if size} == {"loss/first": _ARRAY}


def test_recomputed_values_are_not_saved() -> None:
    """What `jax.checkpoint` computes again is not saved, except where a later layer needs it."""

    def layer(w: Any, x: Any) -> Any:
        return jnp.sin(jnp.sin(jnp.sin(x @ w)))

    def loss(w: Any, x: Any, layer: Any) -> Any:
        with jax.named_scope("block"):
            x = layer(w, x)
        return jnp.sum(x)

    kept = saved_by(lambda w, x: loss(w, x, layer), W, X)
    recomputed = saved_by(lambda w, x: loss(w, x, jax.checkpoint(layer)), W, X)
    assert kept["loss/block"] >= 3 * _ARRAY
    assert not any(recomputed.values())


def test_values_of_all_turns_of_a_loop_count() -> None:
    """A scan whose gradient is another scan leaves the values of each of its turns, under the scope in its body."""

    def loss(w: Any, x: Any) -> Any:
        def body(x: Any, _: Any) -> Any:
            with jax.named_scope("layer"):
                return jnp.exp(x @ w), None

        return jnp.sum(jax.lax.scan(body, x, None, length=5)[0])

    assert saved_by(loss, W, X)["loss/layer"] >= 5 * _ARRAY
