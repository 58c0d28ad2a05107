"""What compiled loops over stacked batches have in common."""

from typing import Any

import jax
import jax.numpy as jnp


def item_at(stacked: Any, index: Any) -> Any:
    """One of several batches in arrays with one more dimension in front."""
    with jax.named_scope("batch"):
        return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, 0, keepdims=False), stacked)


def places_for(forms: Any, number: int) -> Any:
    """Zeros for the outputs of a number of rounds.

    Args:
        forms: Shapes and types of the outputs of one.
        number: How many.
    """
    return jax.tree.map(lambda form: jnp.zeros((number, *form.shape), form.dtype), forms)


def with_outputs(whole: Any, found: Any, index: Any) -> Any:
    """The outputs of all rounds with those of one in their place."""

    def put(whole: jax.Array, found: Any) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(whole, jnp.asarray(found, whole.dtype), index, 0)

    with jax.named_scope("outputs"):
        return jax.tree.map(put, whole, found)


def is_weak(leaf: Any) -> bool:
    """Whether the type of an array gives way to others, as that of `jnp.full(3, 0.5)`. NumPy has no such arrays."""
    return isinstance(leaf, jax.Array) and getattr(leaf, "weak_type", False)  # keys have no types of this kind


def names_operations() -> bool:
    """Whether JAX is to name the operation that was not finite first, which it cannot do inside a loop."""
    # Names that JAX adds at run time.
    return bool(jax.config.jax_debug_nans or jax.config.jax_debug_infs)  # pyright: ignore[reportAttributeAccessIssue]
