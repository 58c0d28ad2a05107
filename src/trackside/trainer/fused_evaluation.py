"""Several batches of an evaluation in one call of a compiled program, as `fused_steps` does for training.

The program is a loop over stacked batches that runs as often as it is given batches, so one program serves any number
of them up to its capacity. Each batch is evaluated by the same instructions whatever the number around it. Batches that
cannot be stacked are evaluated one by one (`batch_collector.py`).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from trackside.fusing.loops import names_operations
from trackside.trainer.batch import num_bytes_of
from trackside.trainer.batch_collector import BatchCollector, Collected
from trackside.trainer.engine import Engine
from trackside.trainer.steps_per_call import StepCost, StepsPerCall, choose_steps_per_call

Call = Callable[[Any, Any], Any]
"""`call(carry, vector) -> vector`, for batches that were collected."""


class FusedEvaluation:
    """Makes calls that evaluate several batches. Outlives an evaluation, so that the next compiles nothing.

    Args:
        collector: Collects batches.
        build: Compiles `call(carry, vector, num_batches, batches) -> vector`.
        build_plain: Compiles `call(carry, vector, batch) -> vector`, for batches that cannot be stacked.
        watch: Watches the compiles of a function under a name.
    """

    def __init__(
        self,
        collector: BatchCollector,
        build: Callable[[], Callable],
        build_plain: Callable[[], Callable],
        watch: Callable[[Callable, str], Callable],
    ):
        self._collector = collector
        self._build = build
        self._build_plain = build_plain
        self._watch = watch
        self._fused: Callable | None = None
        self._plain: Callable | None = None
        self._arguments: tuple[Any, Any] = (0, None)

    def calls(self, batches: Iterable) -> Iterator[Call]:
        """The calls that evaluate batches, in order. Each has to be made before the next is asked for."""
        for collected in self._collector.collect(batches):
            yield self._plain_call_of(collected.latest) if collected.stack is None else self._call_of(collected)

    def _call_of(self, collected: Collected) -> Call:
        if self._fused is None:
            fused = self._build()

            # What a recompile is explained by is the batch, as the loader gave it.
            def eval_call(carry: Any, vector: Any, batch: Any) -> Any:
                del batch
                return fused(carry, vector, *self._arguments)

            self._fused = self._watch(eval_call, "eval_step")
        call, stack = self._fused, collected.stack
        assert stack is not None

        def evaluate(carry: Any, vector: Any) -> Any:
            self._arguments = collected.arguments
            vector = call(carry, vector, collected.latest)
            stack.hold_until(vector)
            return vector

        return evaluate

    def _plain_call_of(self, batch: Any) -> Call:
        if self._plain is None:
            self._plain = self._watch(self._build_plain(), "eval_step on a batch that cannot be stacked")
        call = self._plain
        return lambda carry, vector: call(carry, vector, batch)


def choose_batches_per_call(
    engine: Engine, wanted: int | Literal["auto"], find_cost: Callable[[], StepCost | None], output_bytes: int = 0
) -> StepsPerCall:
    """How many batches a call takes: several only on one CPU device, by the rule for training steps.

    Args:
        engine: What the calls run on.
        wanted: `TrainerConfig.steps_per_call`.
        find_cost: Says what is done for a batch; None where nothing is compiled.
        output_bytes: The size of what is given back for a batch.
    """
    cost = find_cost() if engine.device_is_host and wanted != 1 else None
    if cost is None or names_operations():
        return StepsPerCall()
    if wanted != "auto":
        return StepsPerCall("fused", wanted)
    num_bytes = num_bytes_of(engine.placement.exmp_batch) + output_bytes
    return choose_steps_per_call("auto", None, cost, num_bytes, 1, True, False, output_bytes)
