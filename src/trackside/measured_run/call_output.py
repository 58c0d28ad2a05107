"""Which array of what a step returned shows that the step has completed.

All arrays of an execution are computed at the same time, so one is enough. It must not be one that the user donates to
the next call, since such an array is gone before it can be looked at. The smallest one near the top, such as a loss, is
the best guess; a look at the first few calls shows which ones really stay.

A step that returns no array may still have the device at work: it changes variables of Flax NNX, or keeps its results
to itself. Then one of the variables is looked at, or nothing is known of the device.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from trackside.measured_run.changed_variables import ChangedVariable
from trackside.measured_run.tree_getter import build_getter
from trackside.profiling.timers.device_outputs import TracedOutputError, find_arrays

MAX_BYTES = 65536
"""Larger arrays are not kept beyond the call."""
MAX_KEPT_CALLS = 256
MAX_KEPT_BYTES = 1 << 24
"""Arrays of as many calls, and of as many bytes, are kept before those that are there are let go of."""
NUM_LEARNING_CALLS = 3
"""After as many calls in which nothing was donated, the choice stands."""
_MAX_CANDIDATES = 64


class Complete:
    """What stands for a call that was over when it returned, as on the CPU with PyTorch and numpy."""

    def is_ready(self) -> bool:
        """It is."""
        return True

    def is_deleted(self) -> bool:
        """It never is."""
        return False

    def block_until_ready(self) -> None:
        """Nothing to wait for."""


COMPLETE = Complete()


class CallOutput:
    """Finds the array to look at in what the calls of one function return.

    Args:
        is_jitted: Whether JAX compiles the function, so that it is never over when it returns.
    """

    def __init__(self, is_jitted: bool = False) -> None:
        self.get: Callable[[Any], Any] = _get_nothing
        """Gets the array that was chosen, once the choice stands. Where that gives no `kind`, it has to be found."""
        self.kind: type | None = None
        self.max_kept = MAX_KEPT_CALLS
        """Of how many calls the array may be kept: of few if it is large, as where a step returns its state alone."""
        self._get: Callable[[Any], Any] | None = None
        self._num_calls = 0
        self._donated: set[Any] = set()
        self._last: dict[Any, Any] = {}
        """Candidates of the call before by their paths, while it is being learned which of them stay."""
        self._variable = ChangedVariable()
        self._is_hidden = is_jitted
        """Whether the device may be at work on something that cannot be seen."""
        self._num_without = 0
        """Calls that have returned no array, and changed no variable."""

    def find(self, output: Any, given: Any = ()) -> Any:
        """What shows that a call has completed: an array, or something like one; None if there is nothing.

        Args:
            output: What the call returned.
            given: Its arguments.

        Raises:
            TracedOutputError: JAX was tracing the function, so it computed nothing.
        """
        if output is None and (array := self._variable.find_again(given)) is not None:
            return array
        is_settled = self._num_calls > NUM_LEARNING_CALLS
        return None if is_settled and self._get is None else self._search(output, given)

    def on_lost(self) -> None:
        """The array that was chosen is gone: look which ones stay."""
        self.get, self._get, self._num_calls = _get_nothing, None, 0

    def _search(self, output: Any, given: Any) -> Any:
        candidates = _candidates(output)
        if not candidates:
            self._last = {}
            return self._without_arrays(output, given)
        self._learn()
        self._num_calls += 1
        self._last = {path: array for path, array in candidates.items() if array.nbytes <= MAX_BYTES}
        if self._num_calls > NUM_LEARNING_CALLS:
            self._last = {}
        for path, array in candidates.items():
            if path not in self._donated and (getter := build_getter(path)) is not None:
                self._get, self.kind = getter, type(array)
                self._bound(array)
                self.get = getter if self._num_calls > NUM_LEARNING_CALLS else _get_nothing
                return array
        self.get, self._get = _get_nothing, None
        return None

    def _learn(self) -> None:
        """See which arrays of the call before were donated to this one."""
        donated = {path for path, array in self._last.items() if array.is_deleted()}
        if not donated <= self._donated:
            self._donated |= donated
            self._num_calls = 0

    def _bound(self, array: jax.Array) -> None:
        self.max_kept = min(MAX_KEPT_CALLS, max(MAX_KEPT_BYTES // max(array.nbytes, 1), 1))

    def _without_arrays(self, output: Any, given: Any) -> Any:
        if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "cuda") and torch.cuda.is_available():
            events = find_arrays(output)
            return events[0] if events else COMPLETE
        if self._num_without < NUM_LEARNING_CALLS:
            if (array := self._variable.find(given)) is not None:
                self._bound(array)
                return array
            self._num_without += 1
            self._is_hidden = self._is_hidden or _is_at_work()
        return None if self._is_hidden else COMPLETE


def _is_at_work() -> bool:
    """Whether JAX still computes something, whoever holds it."""
    return any(not array.is_deleted() and not array.is_ready() for array in jax.live_arrays())


def _get_nothing(output: Any) -> None:
    del output


def _candidates(output: Any) -> dict[Any, jax.Array]:
    """The arrays of an output by their paths, the best guess first.

    Raises:
        TracedOutputError: There are values that JAX traces with.
    """
    found = []
    for place, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(output)):
        if not isinstance(leaf, jax.Array):
            continue
        if isinstance(leaf, Tracer):
            raise TracedOutputError
        if isinstance(leaf.dtype, np.dtype):  # typed keys cannot be looked at
            found.append((leaf.size, len(path), -place, tuple(path), leaf))
    found.sort(key=lambda one: one[:3])
    return {path: leaf for *_, path, leaf in found[:_MAX_CANDIDATES]}
