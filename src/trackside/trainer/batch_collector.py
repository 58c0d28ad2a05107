"""Collects the batches of an evaluation or a prediction for calls that take several.

Batches that cannot be stacked come one by one: those with numbers of Python's own or keys of JAX, or very large ones.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from trackside.fusing.batch_copies import copied_batch
from trackside.fusing.batch_stack import BatchForm, BatchStack
from trackside.trainer.steps_per_call import Pace, StepsPerCall

MAX_FORMS = 4
"""For how many forms of batches there are buffers at a time."""


class Collected(NamedTuple):
    """Batches for one call, which has to be made before the next batches are asked for."""

    latest: Any
    """The last of them, as the loader gave it; a copy if it is alone."""
    stack: BatchStack | None = None
    """Where they are stacked; None for one that is alone."""
    num_batches: int = 1

    @property
    def arguments(self) -> tuple[np.int32, Any]:
        """What a call of several batches is given: how many there are, and all of them."""
        assert self.stack is not None
        arguments = np.int32(self.num_batches), self.stack.stacked()
        # What was on the device stays so for those who guard against transfers that nobody asked for.
        return jax.device_put(arguments) if self.stack.form.is_on_device else arguments


class BatchCollector:
    """Collects batches. Outlives an evaluation, so that the next has buffers and knows the pace.

    Args:
        chosen: How many batches a call may take.
        check: Raises if a batch cannot work; asked for the first of each form.
        now: What the clock shows.
        size_factor: How many bytes a call holds for each byte of its batches, with what it gives for them.
    """

    def __init__(
        self,
        chosen: StepsPerCall,
        check: Callable[[Any], None],
        now: Callable[[], float],
        size_factor: float = 1.0,
    ):
        self._chosen = chosen
        self._check = check
        self._pace = Pace(chosen, now)
        self._size_factor = size_factor
        self._stacks: dict[BatchForm, BatchStack | None] = {}

    def collect(self, batches: Iterable) -> Iterator[Collected]:
        """The batches for each call, in order."""
        self._pace.break_off()
        stack, latest, num_held, length = None, None, 0, 1
        for batch in batches:
            leaves, structure = jax.tree_util.tree_flatten(batch)
            if stack is None or not stack.add(leaves, structure):
                if stack is not None:
                    yield Collected(latest, stack, num_held)
                stack, num_held = self._stack_of(batch, leaves, structure), 0
                if stack is None:
                    yield Collected(copied_batch(batch))
                    continue
                stack.begin()
                stack.add(leaves, structure)
            latest, num_held = batch, num_held + 1
            if num_held >= min(length, stack.capacity):
                yield Collected(latest, stack, num_held)
                stack, length = None, self._pace.length(num_held)
        if stack is not None:
            yield Collected(latest, stack, num_held)

    def _stack_of(self, batch: Any, leaves: list[Any], structure: Any) -> BatchStack | None:
        form = BatchForm.of(leaves, structure)
        if form is None or form.is_listed(device_is_host=True):  # elsewhere, no call takes several
            return None
        if form not in self._stacks:
            self._check(batch)
            while len(self._stacks) >= MAX_FORMS:
                del self._stacks[next(iter(self._stacks))]
            capacity = self._chosen.capacity_for(int(form.num_bytes * self._size_factor))
            self._stacks[form] = BatchStack(form, capacity) if capacity > 1 else None
        return self._stacks[form]
