"""Evaluation and prediction: every example exactly once, with a bounded number of calls in flight.

A last batch that cannot be split over the mesh runs whole on every device; with several processes, of which each has
only its part, it is an error. Metrics are sums and counts over the global batch either way, so nothing is counted
twice.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import jax
import numpy as np

from trackside.errors import DataError
from trackside.fusing.batch_copies import is_trusted
from trackside.measured_run.batch_size import batch_size
from trackside.metrics import MetricLayout, Metrics
from trackside.schedule import NEVER
from trackside.trainer.batch_collector import BatchCollector
from trackside.trainer.buffer_guard import AheadGuard, BufferGuard
from trackside.trainer.engine import Engine
from trackside.trainer.first_look import FirstLook
from trackside.trainer.fused_evaluation import FusedEvaluation, choose_batches_per_call
from trackside.trainer.fused_prediction import FusedPrediction, Outputs, build_fused_prediction
from trackside.trainer.read_ahead import NOT_AHEAD, STOP_TIMEOUT_S, AheadPlan, ReadAhead
from trackside.trainer.train_state import Carry


class Evaluator:
    """Runs an evaluation step, or a prediction, over a loader.

    Args:
        engine: What to run it on.
        max_inflight_steps: How many calls may be under way.
        watch: Watches the compiles of a function under a name; None leaves them alone.
        batches_per_call: How many batches a call may evaluate, as `TrainerConfig.steps_per_call` says it.
        ahead: How many batches to read ahead.
        now: What the clock shows.
    """

    def __init__(
        self,
        engine: Engine,
        max_inflight_steps: int,
        watch: Callable[[Callable, str], Callable] | None = None,
        batches_per_call: int | Literal["auto"] = 1,
        ahead: AheadPlan = NOT_AHEAD,
        now: Callable[[], float] = time.perf_counter,
    ):
        self._engine = engine
        self._max_inflight_steps = max_inflight_steps
        self._watch = watch
        self._batches_per_call: int | Literal["auto"] = batches_per_call
        self._ahead = ahead
        self._now = now
        self._calls: dict[Any, Callable] = {}
        self._fused: dict[MetricLayout, FusedEvaluation | None] = {}
        self._fused_predictions: dict[Callable, FusedPrediction | None] = {}
        self._latest: Any = None
        self.num_batches = 0
        """Batches evaluated so far, as a sign of life."""

    def evaluate(
        self,
        carry: Carry,
        loader: Iterable,
        layout: MetricLayout,
        tracked: Callable[[Iterable], Iterable] = iter,
        name: str = "data_loader",
        first_look: FirstLook | None = None,
    ) -> Metrics:
        """Metrics over all batches of a loader, on the device.

        Args:
            carry: The state.
            loader: The batches.
            layout: The metrics of the evaluation step.
            tracked: Shows the progress of the iterator that it is given.
            name: What the loader is called in errors.
            first_look: Who has looked at the loader before.
        """
        carry = carry._replace(opt_state=None)
        vector = self._engine.fresh_vector(layout)
        with self._opened(loader, name, first_look) as opened, self._naming_bad_batches():
            batches = self._checked(tracked(opened), name)
            fused = self._fused_for(layout, carry)
            if fused is not None:
                return self._evaluate_fused(fused, carry, vector, layout, batches)

            def build(is_split: bool) -> Callable:
                return self._engine.compile_eval(layout, is_split)

            in_flight: deque[tuple[Any, Any]] = deque()
            for batch, call in self._calls_for(batches, loader, ("eval", layout), build, in_flight):
                vector = call(carry, vector, batch)
                in_flight.append((vector, batch))
            return Metrics(layout, jax.block_until_ready(vector))

    def _evaluate_fused(
        self, fused: FusedEvaluation, carry: Carry, vector: Any, layout: MetricLayout, batches: Iterable
    ) -> Metrics:
        in_flight: deque[Any] = deque()
        for call in fused.calls(batches):
            if len(in_flight) >= self._max_inflight_steps:
                jax.block_until_ready(in_flight.popleft())
            vector = call(carry, vector)
            in_flight.append(vector)
        return Metrics(layout, jax.block_until_ready(vector))

    def _fused_for(self, layout: MetricLayout, carry: Carry) -> FusedEvaluation | None:
        """Who evaluates several batches in a call; None where they are evaluated one by one."""
        if layout not in self._fused:
            chosen = choose_batches_per_call(
                self._engine, self._batches_per_call, lambda: self._engine.eval_cost(layout, carry)
            )
            self._fused[layout] = (
                None
                if chosen.program == "plain"
                else FusedEvaluation(
                    BatchCollector(chosen, self._engine.placement.check_structure, self._now),
                    lambda: self._engine.compile_fused_eval(layout),
                    lambda: self._engine.compile_eval(layout, is_split=True),
                    self._watch_or_not,
                )
            )
        return self._fused[layout]

    @contextlib.contextmanager
    def _opened(self, loader: Iterable, name: str, first_look: FirstLook | None) -> Iterator[Iterator]:
        """The batches of a loader, read ahead if that is wanted and can help."""
        iterator = (first_look or FirstLook()).open(loader, name)[1]
        if not self._reads_ahead(loader):
            yield iterator
            return
        num_in_use = self._ahead.num_batches + self._max_inflight_steps
        ahead = ReadAhead(iterator, None, AheadGuard(loader, num_in_use), self._ahead)
        ahead.allow(NEVER)
        try:
            yield ahead
        finally:
            ahead.stop(STOP_TIMEOUT_S)

    @contextlib.contextmanager
    def _naming_bad_batches(self) -> Iterator[None]:
        """If a call fails, say what is wrong with its batch, where that is known: most have one that cannot work."""
        placement, before = self._engine.placement, self._latest
        self._latest = placement.exmp_batch
        try:
            yield
        except DataError:
            raise
        except Exception:
            placement.check_structure(self._latest)
            raise
        finally:
            self._latest = before

    def _reads_ahead(self, loader: Iterable) -> bool:
        return self._ahead.num_batches > 0 and not is_trusted(loader)

    def predict(
        self, carry: Carry, loader: Iterable, predict_step: Callable, first_look: FirstLook | None = None
    ) -> Any:
        """The model's outputs for all examples of this process's loader, as numpy arrays.

        An output that is a single number for a batch gives an array with one number for each batch.
        """
        carry = carry._replace(opt_state=None)
        fused = self._fused_prediction_for(predict_step, carry)
        if fused is not None:
            return self._predict_fused(fused, carry, loader, first_look)
        outputs: list[Any] = []

        def build(is_split: bool) -> Callable:
            return self._engine.compile_predict(predict_step, is_split)

        in_flight: deque[tuple[Any, Any]] = deque()
        with self._opened(loader, "data_loader", first_look) as opened, self._naming_bad_batches():
            batches = self._checked(opened, "data_loader")
            for batch, call in self._calls_for(batches, loader, ("predict", predict_step), build, in_flight):
                output = call(carry, batch)
                in_flight.append((output, batch))
                outputs.append(output)
                if len(outputs) > self._max_inflight_steps:  # free the device of what is done
                    done = len(outputs) - 1 - self._max_inflight_steps
                    outputs[done] = jax.tree.map(_own_rows, outputs[done])
        return jax.tree.map(_joined, *outputs)

    def _predict_fused(
        self, fused: FusedPrediction, carry: Carry, loader: Iterable, first_look: FirstLook | None
    ) -> Any:
        outputs: list[Any] = []
        in_flight: deque[Outputs] = deque()
        with self._opened(loader, "data_loader", first_look) as opened, self._naming_bad_batches():
            for call_outputs in fused.calls(carry, self._checked(opened, "data_loader")):
                in_flight.append(call_outputs)
                if len(in_flight) > self._max_inflight_steps:
                    outputs.append(in_flight.popleft()())
        outputs.extend(wait() for wait in in_flight)
        return jax.tree.map(lambda *parts: np.concatenate(parts), *outputs)

    def _fused_prediction_for(self, predict_step: Callable, carry: Carry) -> FusedPrediction | None:
        if predict_step not in self._fused_predictions:
            self._fused_predictions[predict_step] = build_fused_prediction(
                self._engine, predict_step, carry, self._batches_per_call, self._watch_or_not, self._now
            )
        return self._fused_predictions[predict_step]

    def _watch_or_not(self, call: Callable, name: str) -> Callable:
        return call if self._watch is None else self._watch(call, name)

    def _watched(self, call: Callable, what: str, is_split: bool) -> Callable:
        # Two programs on purpose: under one name, the second would count as a recompile.
        name = f"{what}_step" if is_split else f"{what}_step on a batch that cannot be split"
        return self._watch_or_not(call, name)

    def _checked(self, batches: Iterable, name: str) -> Iterator[Any]:
        """The batches, of which the first is looked at and all are counted."""
        placement, processes = self._engine.placement, self._engine.processes
        num_batches = num_examples = 0
        for batch in batches:
            self._latest = batch
            if num_batches == 0:
                placement.check_structure(batch)
            num_batches += 1
            self.num_batches += 1
            num_examples += batch_size(batch) if processes.are_several else 0
            yield batch
        processes.check_same(
            {f"{name}, examples to evaluate": num_examples},
            "give every process the same number of batches, with the same number of examples",
        )
        if num_batches == 0:
            raise DataError(f"{name}: gave no batch to evaluate; an iterator can be read only once")

    def _calls_for(
        self,
        batches: Iterable,
        loader: Iterable,
        key: tuple,
        build: Callable[[bool], Callable],
        in_flight: deque[tuple[Any, Any]],
    ) -> Iterable[tuple[Any, Callable]]:
        """Each batch with the compiled call for its size, once there is room among the calls in flight."""
        guard = BufferGuard(() if self._reads_ahead(loader) else loader, self._max_inflight_steps)
        placement, is_shared = self._engine.placement, self._engine.processes.are_several
        for batch in batches:
            batch = guard.protect(batch)
            is_split = is_shared or placement.is_divisible(batch)
            if (*key, is_split) not in self._calls:
                self._calls[(*key, is_split)] = self._watched(build(is_split), key[0], is_split)
            if len(in_flight) >= self._max_inflight_steps:
                jax.block_until_ready(in_flight.popleft()[0])
            yield (placement.place(batch) if is_split else batch), self._calls[(*key, is_split)]
            if guard.on_probation:
                jax.block_until_ready([result for result, _ in in_flight])
                in_flight.clear()


def _joined(*parts: Any) -> np.ndarray:
    """What several batches have given, in one array."""
    arrays = [_own_rows(part) for part in parts]
    return np.concatenate(arrays) if arrays[0].ndim else np.stack(arrays)


def _own_rows(output: Any) -> np.ndarray:
    """The rows of an output that belong to this process, in the order of its examples."""
    if not isinstance(output, jax.Array) or output.is_fully_addressable:
        return np.asarray(output)
    parts = {shard.index[0].indices(len(output))[0]: shard.data for shard in output.addressable_shards}
    return np.concatenate([np.asarray(parts[start]) for start in sorted(parts)])
