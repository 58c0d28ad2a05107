"""The steps of a profiled training, by the operations that `train_decoding_jax` documents.

The trainer's loop measures by itself; what is here fills the user's profiler, beside it.
"""

from collections.abc import Callable
from typing import Any

import jax

from trackside.metrics import MetricLayout
from trackside.profiling import TrainingProfiler, profile_make_step
from trackside.trainer.engine import Engine, TrainCall


class StepTimer:
    """Times the steps of one training.

    Args:
        profiler: Measures them.
    """

    def __init__(self, profiler: TrainingProfiler):
        self._profiler = profiler
        self._forms: set[Any] = set()
        self._started_s = 0.0

    @property
    def engine_class(self) -> type[Engine]:
        """An engine whose training calls are timed."""
        timer = self

        class TimedEngine(Engine):
            def train_call(self, layout: MetricLayout) -> TrainCall:
                return timer.ends_with(super().train_call(layout))

        return TimedEngine

    def begins_with(self, place: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The function that places a batch; a step begins with it."""

        def timed(batch: Any) -> Any:
            self._started_s = self._profiler.start_timer("training_step")
            return place(batch)

        return timed

    def ends_with(self, call: Any) -> TrainCall:
        """The compiled call; a step of the host ends when it returns."""
        profiler, make_step = self._profiler, profile_make_step(call, profiler=self._profiler)

        def timed(carry: Any, vector: Any, batch: Any) -> Any:
            form = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch))
            if form not in self._forms:
                self._forms.add(form)
                self._compile(call, carry, vector, batch)
            result = make_step(carry, vector, batch)
            profiler.end_timer("training_step", self._started_s)
            profiler.step()
            return result

        return timed

    def _compile(self, call: Any, *args: Any) -> None:
        """Compile a step by itself, so that the times of steps are those of steps."""
        self._profiler.cancel_timer(self._started_s)
        with self._profiler.time("compilation"):
            call.lower(*args).compile()
        self._started_s = self._profiler.start_timer("training_step")

    def close(self) -> None:
        """Drop a step that was begun and not made, because of an error."""
        self._profiler.cancel_timer(self._started_s)
