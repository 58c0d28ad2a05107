"""Several batches of an evaluation in one call of a compiled program, as `fused_steps` does for training.

The program is a loop over stacked batches that runs as often as it is given batches, so one program serves any number
of them up to its capacity. Each batch is evaluated by the same instructions whatever the number around it. Batches that
cannot be stacked are evaluated one by one: those on the device, with numbers of Python's own, or very large ones.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import jax
import numpy as np

from trackside.metrics import MetricLayout
from trackside.trainer.batch import num_bytes_of
from trackside.trainer.batch_stack import BatchForm, BatchStack
from trackside.trainer.buffer_guard import copied_batch
from trackside.trainer.engine import Engine
from trackside.trainer.fused_steps import names_operations
from trackside.trainer.steps_per_call import Pace, StepsPerCall, choose_steps_per_call
from trackside.trainer.train_state import Carry

MAX_FORMS = 4
"""For how many forms of batches there are buffers at a time."""

Call = Callable[[Any, Any], Any]
"""`call(carry, vector) -> vector`, for batches that were collected."""


class FusedEvaluation:
    """Collects batches for calls that evaluate several. Outlives an evaluation, so that the next compiles nothing.

    Args:
        chosen: How many batches a call may evaluate.
        build: Compiles `call(carry, vector, num_batches, batches) -> vector`.
        build_plain: Compiles `call(carry, vector, batch) -> vector`, for batches that cannot be stacked.
        watch: Watches the compiles of a function under a name.
        now: What the clock shows.
    """

    def __init__(
        self,
        chosen: StepsPerCall,
        build: Callable[[], Callable],
        build_plain: Callable[[], Callable],
        watch: Callable[[Callable, str], Callable],
        now: Callable[[], float],
    ):
        self._chosen = chosen
        self._build = build
        self._build_plain = build_plain
        self._watch = watch
        self._pace = Pace(chosen, now)
        self._stacks: dict[BatchForm, BatchStack | None] = {}
        self._fused: Callable | None = None
        self._plain: Callable | None = None
        self._arguments: tuple[Any, Any] = (0, None)

    def calls(self, batches: Iterable) -> Iterator[Call]:
        """The calls that evaluate batches, in order. Each has to be made before the next is asked for."""
        self._pace.break_off()
        stack, latest, num_held, length = None, None, 0, 1
        for batch in batches:
            leaves, structure = jax.tree_util.tree_flatten(batch)
            if stack is not None and not stack.form.fits(leaves, structure):
                yield self._call_of(stack, latest, num_held)
                stack = None
            if stack is None:
                stack, num_held = self._stack_of(leaves, structure), 0
                if stack is None:
                    yield self._plain_call_of(copied_batch(batch))
                    continue
                stack.begin()
            stack.add(leaves)
            latest, num_held = batch, num_held + 1
            if num_held >= min(length, stack.capacity):
                yield self._call_of(stack, latest, num_held)
                stack, length = None, self._pace.length(num_held)
        if stack is not None:
            yield self._call_of(stack, latest, num_held)

    def _stack_of(self, leaves: list[Any], structure: Any) -> BatchStack | None:
        form = BatchForm.of(leaves, structure)
        if form is None or form.is_on_device:
            return None
        if form not in self._stacks:
            while len(self._stacks) >= MAX_FORMS:
                del self._stacks[next(iter(self._stacks))]
            capacity = self._chosen.capacity_for(form.num_bytes)
            self._stacks[form] = BatchStack(form, capacity) if capacity > 1 else None
        return self._stacks[form]

    def _call_of(self, stack: BatchStack, latest: Any, num_batches: int) -> Call:
        if self._fused is None:
            fused = self._build()

            # What a recompile is explained by is the batch, as the loader gave it.
            def eval_call(carry: Any, vector: Any, batch: Any) -> Any:
                del batch
                return fused(carry, vector, *self._arguments)

            self._fused = self._watch(eval_call, "eval_step")
        call = self._fused

        def evaluate(carry: Any, vector: Any) -> Any:
            self._arguments = np.int32(num_batches), stack.stacked()
            vector = call(carry, vector, latest)
            stack.hold_until(vector)
            return vector

        return evaluate

    def _plain_call_of(self, batch: Any) -> Call:
        if self._plain is None:
            self._plain = self._watch(self._build_plain(), "eval_step on a batch that cannot be stacked")
        call = self._plain
        return lambda carry, vector: call(carry, vector, batch)


def choose_batches_per_call(
    engine: Engine, layout: MetricLayout, carry: Carry, wanted: int | Literal["auto"]
) -> StepsPerCall:
    """How many batches a call evaluates: several only on one CPU device, by the rule for training steps.

    Args:
        engine: What the evaluation runs on.
        layout: Its metrics.
        carry: The state.
        wanted: `TrainerConfig.steps_per_call`.
    """
    cost = None if wanted == 1 or engine.processes.are_several else engine.eval_cost(layout, carry)
    is_safe = jax.default_backend() == "cpu" and engine.mesh.size == 1
    if cost is None or not is_safe or cost.has_convolutions or names_operations():
        return StepsPerCall()
    if wanted != "auto":
        return StepsPerCall("fused", wanted)
    return choose_steps_per_call("auto", None, cost, num_bytes_of(engine.placement.exmp_batch), 1, True, False)
