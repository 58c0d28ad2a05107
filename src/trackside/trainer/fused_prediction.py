"""Several batches of a prediction in one call of a compiled program, as `fused_evaluation` does for metrics."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import jax
import numpy as np

from trackside.trainer.batch import num_bytes_of
from trackside.trainer.batch_collector import BatchCollector, Collected
from trackside.trainer.engine import Engine
from trackside.trainer.fused_evaluation import choose_batches_per_call
from trackside.trainer.train_state import Carry

Outputs = Callable[[], Any]
"""Waits for a call, and gives its outputs as numpy arrays, with the examples of all of its batches in front."""


class FusedPrediction:
    """Makes calls that predict for several batches. Outlives a prediction, so that the next compiles nothing.

    Args:
        collector: Collects batches.
        call: `call(carry, num_batches, batches) -> outputs`, with one more dimension in front.
        plain: `call(carry, batch) -> outputs`, for batches that cannot be stacked.
        watch: Watches the compiles of a function under a name.
    """

    def __init__(
        self,
        collector: BatchCollector,
        call: Callable,
        plain: Callable,
        watch: Callable[[Callable, str], Callable],
    ):
        self._collector = collector
        self._arguments: tuple[Any, Any] = (0, None)

        # What a recompile is explained by is the batch, as the loader gave it.
        def predict_call(carry: Any, batch: Any) -> Any:
            del batch
            return call(carry, *self._arguments)

        self._call = watch(predict_call, "predict_step")
        self._plain = watch(plain, "predict_step on a batch that cannot be stacked")

    def calls(self, carry: Carry, batches: Iterable) -> Iterator[Outputs]:
        """Make the calls for batches, in order, and say how to get the outputs of each."""
        for collected in self._collector.collect(batches):
            if collected.stack is None:
                yield _alone(self._plain(carry, collected.latest))
            else:
                yield self._predict(carry, collected)

    def _predict(self, carry: Carry, collected: Collected) -> Outputs:
        assert collected.stack is not None
        self._arguments = collected.arguments
        outputs = self._call(carry, collected.latest)
        leaves = jax.tree.leaves(outputs)
        if leaves:
            collected.stack.hold_until(leaves[0])
        num_batches = collected.num_batches
        return lambda: jax.tree.map(lambda leaf: _rows_of(np.asarray(leaf)[:num_batches]), outputs)


def build_fused_prediction(
    engine: Engine,
    predict: Callable,
    carry: Carry,
    wanted: int | Literal["auto"],
    watch: Callable[[Callable, str], Callable],
    now: Callable[[], float],
) -> FusedPrediction | None:
    """Who predicts for several batches in a call; None where that is done one by one.

    Args:
        engine: What to run it on.
        predict: The prediction for a state and a batch.
        carry: The state.
        wanted: `TrainerConfig.steps_per_call`.
        watch: Watches the compiles of a function under a name.
        now: What the clock shows.
    """
    cost, output_bytes = (None, 0) if wanted == 1 else engine.predict_cost(predict, carry) or (None, 0)
    chosen = choose_batches_per_call(engine, wanted, lambda: cost, output_bytes)
    if chosen.program == "plain":
        return None
    size_factor = 1 + output_bytes / max(num_bytes_of(engine.placement.exmp_batch), 1)
    return FusedPrediction(
        BatchCollector(chosen, engine.placement.check_structure, now, size_factor),
        engine.compile_fused_predict(predict),
        engine.compile_predict(predict, is_split=True),
        watch,
    )


def _alone(outputs: Any) -> Outputs:
    return lambda: jax.tree.map(lambda leaf: np.atleast_1d(np.asarray(leaf)), outputs)


def _rows_of(stacked: np.ndarray) -> np.ndarray:
    """The rows of several batches one after the other; a number for each batch stays one."""
    if stacked.ndim == 1:
        return stacked
    num_batches, num_rows, *others = stacked.shape
    return stacked.reshape(num_batches * num_rows, *others)
