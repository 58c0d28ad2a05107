"""What compiled loops over stacked batches have in common."""

from typing import Any

import jax
import jax.numpy as jnp


def item_at(stacked: Any, index: Any) -> Any:
    """One of several batches in arrays with one more dimension in front."""
    with jax.named_scope("batch"):
        return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, 0, keepdims=False), stacked)


def with_item(whole: jax.Array, item: Any, index: Any) -> jax.Array:
    """The array with something else in one place."""
    return jax.lax.dynamic_update_index_in_dim(whole, jnp.asarray(item, whole.dtype), index, 0)


def is_weak(leaf: Any) -> bool:
    """Whether the type of an array gives way to others, as that of `jnp.full(3, 0.5)`. NumPy has no such arrays."""
    return isinstance(leaf, jax.Array) and getattr(leaf, "weak_type", False)  # keys have no types of this kind


def names_operations() -> bool:
    """Whether JAX is to name the operation that was not finite first, which it cannot do inside a loop."""
    # Names that JAX adds at run time.
    return bool(jax.config.jax_debug_nans or jax.config.jax_debug_infs)  # pyright: ignore[reportAttributeAccessIssue]
