"""Finds the arrays in what a function returned that a device may still be computing. Works without jax and torch."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from trackside.profiling.timers.call_durations import Waitable

MAX_BYTES = 65536
"""Larger arrays are not kept for longer than necessary."""
_CONTAINERS = (tuple, list, dict)
_ON_THE_HOST = frozenset({type(None), bool, int, float, complex, str, bytes})


class TracedOutputError(Exception):
    """JAX was tracing the function, so it computed nothing."""


def find_arrays(output: Any) -> Sequence[Waitable]:
    """The arrays in a function's output that have to be waited for; empty if everything is computed already.

    Raises:
        TracedOutputError: The output is what JAX traces with.
    """
    if type(output) in _ON_THE_HOST:
        return ()
    arrays: list[Waitable] = []
    if (jax := sys.modules.get("jax")) is not None and hasattr(jax, "Array"):
        leaves = jax.tree.leaves(output)
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        if any(isinstance(array, jax.core.Tracer) for array in arrays):
            raise TracedOutputError
    if not arrays and (torch := sys.modules.get("torch")) is not None:
        return _find_cuda_work(output, torch)
    return arrays


def is_traced(output: Any) -> bool:
    """Whether JAX was tracing the function that returned this, so that nothing was computed."""
    try:
        find_arrays(output)
    except TracedOutputError:
        return True
    return False


def is_light(arrays: Sequence[Waitable]) -> bool:
    """Whether this is one small array, which may be kept for a while."""
    return len(arrays) == 1 and getattr(arrays[0], "nbytes", 0) <= MAX_BYTES


class OutputFinder:
    """Finds the array that shows when a call of one function is complete, if a call is a single execution.

    All arrays of an execution are computed at the same time, so one is enough. The smallest one at the top level, such
    as a loss, is the least likely to be donated to the next call. Its position is remembered, because looking for it
    takes longer than everything else that is done for a call.
    """

    def __init__(self) -> None:
        self._position: int | None = None
        self._kind: type | None = None
        self._takes_all = False
        self.is_light = False
        """Whether the array found last is small enough to be kept."""

    def find(self, output: Any) -> Sequence[Waitable]:
        """The arrays to wait for; empty if everything is computed already.

        Raises:
            TracedOutputError: The output is what JAX traces with.
        """
        if self._position is not None and type(output) is tuple and self._position < len(output):
            array = output[self._position]
            if type(array) is self._kind:
                return (array,)
        return self._search(output)

    def on_lost(self) -> None:
        """The chosen array was donated to the next call: from now on, wait for all that are left."""
        self._takes_all, self._position, self.is_light = True, None, False

    def _search(self, output: Any) -> Sequence[Waitable]:
        self.is_light = False
        jax = sys.modules.get("jax")
        if self._takes_all or jax is None or not isinstance(output, tuple | list):
            return find_arrays(output)
        arrays = [
            (element.size, -position)
            for position, element in enumerate(output)
            if not isinstance(element, _CONTAINERS) and isinstance(element, jax.Array)  # the first test is quick
        ]
        if not arrays:
            return find_arrays(output)
        position = -min(arrays)[1]
        chosen = output[position]
        if isinstance(chosen, jax.core.Tracer):
            raise TracedOutputError
        self._position, self._kind, self.is_light = position, type(chosen), is_light((chosen,))
        return (chosen,)


class _CudaEvent:
    """The work in a CUDA stream up to now, as something to wait for."""

    def __init__(self, torch: Any, device: Any):
        self._event = torch.cuda.current_stream(device).record_event()

    def block_until_ready(self) -> None:
        """Return when the work is done."""
        self._event.synchronize()

    def is_deleted(self) -> bool:
        """It never is."""
        return False

    def is_ready(self) -> bool:
        """Whether the work is done."""
        return self._event.query()


def _find_cuda_work(output: Any, torch: Any) -> Sequence[Waitable]:
    """PyTorch computes on the host before it returns; only on a GPU is there something to wait for."""
    if not (hasattr(torch, "cuda") and torch.cuda.is_available()):
        return ()
    devices = {leaf.device for leaf in _walk(output) if isinstance(leaf, torch.Tensor) and leaf.is_cuda}
    return [_CudaEvent(torch, device) for device in devices]


def _walk(output: Any) -> Iterator[Any]:
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, tuple | list):
        for element in output:
            yield from _walk(element)
    else:
        yield output
