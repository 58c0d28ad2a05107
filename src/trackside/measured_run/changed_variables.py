"""The variables that a step of Flax NNX changes in place: such a step may return nothing, and still has results."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from trackside.measured_run.tree_getter import build_getter
from trackside.profiling.timers.device_outputs import TracedOutputError


class ChangedVariable:
    """Finds one variable among the arguments of a function that each of its calls changes: the smallest."""

    def __init__(self) -> None:
        self._get: Callable[[Any], Any] | None = None
        self._last: Any = None
        """What the variable held after the call before."""

    def find(self, given: Any) -> jax.Array | None:
        """The array that a call has put into a variable; None if there is none.

        Args:
            given: The arguments of the call.

        Raises:
            TracedOutputError: JAX was tracing the function, so it computed nothing.
        """
        variable_type = getattr(sys.modules.get("flax.nnx"), "Variable", None)
        if variable_type is None:
            return None
        self._get, self._last = _smallest(given, variable_type, self._last)
        return self._last

    def find_again(self, given: Any) -> jax.Array | None:
        """The same of the variable that was found before, which takes a fraction of the time; None if it is not so."""
        if self._get is None:
            return None
        try:
            found = self._get(given).get_raw_value()
        except (TypeError, LookupError, AttributeError):  # other arguments than before
            return None
        if found is self._last or isinstance(found, Tracer):
            return None
        self._last = found
        return found


def _smallest(given: Any, variable_type: type, unchanged: Any) -> tuple[Callable[[Any], Any] | None, jax.Array | None]:
    """The smallest variable, as something that gets it from the arguments, and what it holds."""
    leaves = jax.tree_util.tree_leaves_with_path(given, is_leaf=lambda leaf: isinstance(leaf, variable_type))
    held = [(path, leaf.get_raw_value()) for path, leaf in leaves if isinstance(leaf, variable_type)]
    arrays = [(path, array) for path, array in held if isinstance(array, jax.Array) and array is not unchanged]
    if any(isinstance(array, Tracer) for _, array in arrays):
        raise TracedOutputError
    for path, array in sorted(arrays, key=lambda one: one[1].size):
        if isinstance(array.dtype, np.dtype) and (get := build_getter(path)) is not None:  # typed keys tell nothing
            return get, array
    return None, None
