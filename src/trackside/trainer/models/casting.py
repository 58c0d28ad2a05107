"""What is cast around a call of a model, in mixed precision.

Whatever goes into a model from outside is cast to the type in which it computes: its parameters, and the floating-point
arrays among its arguments. What comes out is cast to the type of outputs. Calls of one part of a model by another are
inside, and are left alone, so a layer with a `dtype` of its own keeps it.

Never cast are integers, keys, complex numbers, and the state of the model: batch statistics, counters and caches keep
the types that they have.
"""

import contextvars
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_IS_INSIDE: contextvars.ContextVar[bool] = contextvars.ContextVar("is_inside_model", default=False)


@dataclass(frozen=True)
class Casting:
    """Casts what crosses the border of a model."""

    compute: Any
    """The type in which the model computes."""
    output: Any
    """The type of what it returns."""
    kept: tuple[type, ...] = ()
    """Classes of a library whose objects are not looked into, such as those that hold state."""

    def to_compute(self, tree: Any) -> Any:
        """A tree with its floating-point arrays in the type in which the model computes."""
        return self._cast(tree, self.compute)

    def to_output(self, tree: Any) -> Any:
        """A tree with its floating-point arrays in the type of outputs."""
        return self._cast(tree, self.output)

    def _cast(self, tree: Any, dtype: Any) -> Any:
        return jax.tree.map(
            lambda leaf: cast_floating(leaf, dtype), tree, is_leaf=lambda node: isinstance(node, self.kept)
        )

    def around(self, call: Callable) -> Callable:
        """A call from outside of the model, with its arguments and its result cast."""

        @functools.wraps(call)
        def cast_call(*args: Any, **kwargs: Any) -> Any:
            if _IS_INSIDE.get():
                return call(*args, **kwargs)
            token = _IS_INSIDE.set(True)
            try:
                args, kwargs = self.to_compute((args, kwargs))
                return self.to_output(call(*args, **kwargs))
            finally:
                _IS_INSIDE.reset(token)

        return cast_call


def cast_floating(leaf: Any, dtype: Any) -> Any:
    """An array in another type if it is one of real floating-point numbers; anything else as it is."""
    if not isinstance(leaf, jax.Array | np.ndarray) or not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    return leaf if leaf.dtype == dtype else jnp.asarray(leaf).astype(dtype)


def in_types_of(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> dict[str, Any]:
    """The new variables of a model in the types of the old ones, where they have the same form.

    Args:
        before: The variables before a step.
        after: Those that the step gives, perhaps not all of them.
    """
    kept = dict(after)
    for name, new in after.items():
        old = (before or {}).get(name)
        if old is not None and jax.tree.structure(old) == jax.tree.structure(new):
            kept[name] = jax.tree.map(_in_type_of, old, new)
    return kept


def _in_type_of(old: Any, new: Any) -> Any:
    return cast_floating(new, old.dtype) if jnp.issubdtype(old.dtype, jnp.floating) else new
