"""The engine: what a training runs on. Mesh, model, optimizer, shardings and compiled calls, frozen once built.

The accumulated metrics are the one small vector that a call returns: the loop waits for it to bound the steps in
flight, reads the finite flag in it, and copies it where a row is logged. It is not donated. Donating some hundred bytes
saves nothing, while a vector that stays valid needs no second copy as a report, and starting again after a log row is
passing another array (measured: 8 to 15 us less per step than a donated vector with a copy and a reset flag).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trackside.fusing.looped_convolutions import fast_in_loops
from trackside.metrics import MetricLayout, Metrics
from trackside.metrics.packed import MetricRecorder
from trackside.processes import JAX_PROCESSES, Processes
from trackside.trainer.batch import zeros_for_shape
from trackside.trainer.batch_placement import BatchPlacement
from trackside.trainer.fused_steps import evaluate_batches, predict_batches, run_planned_steps
from trackside.trainer.models import ModelAdapter
from trackside.trainer.sharding import batch_axes, optimizer_specs, replicated, to_shardings, use_mesh_in_trace
from trackside.trainer.step_functions import EvalStep, TrainStep
from trackside.trainer.step_trace import StepTrace, StepTraces, cost_of, trace_step
from trackside.trainer.steps_per_call import StepCost
from trackside.trainer.train_state import Carry, TrainState, to_carry, view_carry

TRAIN_CALL_NAME = "train_call"
"""What the compiled training step is called in traces and in messages about compilation."""

EVAL_CALL_NAME = "eval_call"
"""The same of the evaluation step."""

OPTIMIZER_STATE_NAME = "optimizer state"
"""What the program is called that makes the state of a transformation that was added to the optimizer."""

TrainCall = Callable[[Carry, Any, Any], tuple[Carry, Any]]
FusedCall = Callable[[Carry, Any, Any, Any], tuple[Carry, Any, Any]]


@dataclass(frozen=True)
class Engine:
    """What a training runs on."""

    mesh: Mesh
    adapter: ModelAdapter
    tx: optax.GradientTransformation
    carry_shardings: Carry
    """How the state is spread over the mesh."""
    placement: BatchPlacement
    train_step: TrainStep
    eval_step: EvalStep
    train_log_modes: tuple[str, ...] = ("mean",)
    """How metrics of training are logged that do not say so themselves."""
    donate: bool = True
    """Whether a training step may overwrite the state that it is given."""
    debug: bool = False
    """Whether nothing is compiled."""
    fsdp_min_weight_size: int = 0
    evaluation_params: Callable[[Any], Any] | None = None
    """From a state, the parameters to evaluate instead of its own; it may give None for those."""
    processes: Processes = JAX_PROCESSES

    @functools.cached_property
    def device_is_host(self) -> bool:
        """Whether it runs on one CPU device of one process, whose arrays NumPy reads where they are."""
        return self.mesh.size == 1 and not self.processes.are_several and self.mesh.devices.flat[0].platform == "cpu"

    # --- states -------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def apply_fn(self) -> Callable:
        """The model's apply function, which takes all of its variables."""
        return self.adapter.bind(None, None)

    def view(self, carry: Carry) -> TrainState:
        """The state that step functions, hooks and callbacks see."""
        return view_carry(carry, self.apply_fn, self.tx)

    def to_evaluate(self, carry: Carry) -> Carry:
        """The state that evaluation uses."""
        params = None if self.evaluation_params is None else self.evaluation_params(carry)
        return carry if params is None else carry._replace(params=params)

    def with_optimizer_extended(
        self, transform: optax.GradientTransformation, carry: Carry, named: Callable[[Callable, str], Callable]
    ) -> tuple[optax.GradientTransformation, Carry, Carry]:
        """An optimizer that another transformation follows, and the state with what that keeps.

        Args:
            transform: The transformation.
            carry: The current state.
            named: Gives the compiles of a function a name.

        Returns:
            The optimizer, the state, and how that is spread over the mesh.
        """
        specs = jax.tree.map(lambda sharding: sharding.spec, self.carry_shardings.params)
        abstract = jax.eval_shape(transform.init, carry.params)
        added = optimizer_specs(self.mesh, abstract, carry.params, specs, self.fsdp_min_weight_size)
        shardings = to_shardings(self.mesh, added)
        state = named(jax.jit(transform.init, out_shardings=shardings), OPTIMIZER_STATE_NAME)(carry.params)
        return (
            optax.chain(self.tx, transform),
            carry._replace(opt_state=(carry.opt_state, state)),
            self.carry_shardings._replace(opt_state=(self.carry_shardings.opt_state, shardings)),
        )

    # --- metrics ------------------------------------------------------------------------------------------------------

    def train_layout(self, carry: Carry, batch: Any) -> MetricLayout:
        """The metrics of the training step, learned by tracing it, so that it compiles only once."""

        def step(carry: Carry, batch: Any, metrics: Any) -> tuple[Carry, Any]:
            state, metrics = self.train_step(self.view(carry), batch, metrics)
            return to_carry(state), metrics

        layout, trace = self._discover(step, carry, batch, MetricRecorder(self.train_log_modes), TRAIN_CALL_NAME)
        self._train_traces.add(layout, trace)
        return layout

    @functools.cached_property
    def _train_traces(self) -> StepTraces:
        return StepTraces()

    def forget_traces(self) -> None:
        """Trace the training step again for the next programs: the user's code may do something else by then."""
        self._train_traces.forbid_replay()

    def step_cost(self, layout: MetricLayout, carry: Carry) -> StepCost | None:
        """What the training step does, from the trace that has shown its metrics; None where nothing is compiled.

        Args:
            layout: Its metrics, as `train_layout` gave them.
            carry: The current state.
        """
        return self._train_traces.cost(layout, carry)

    def eval_layout(self, carry: Carry, batch: Any) -> MetricLayout:
        """The metrics of the evaluation step."""

        def step(carry: Carry, batch: Any, metrics: Any) -> tuple[None, Any]:
            return None, self.eval_step(self.view(carry), batch, metrics)

        recorder = MetricRecorder(("mean_nopostfix",), only_default=True)
        layout, trace = self._discover(step, carry, batch, recorder, EVAL_CALL_NAME)
        self._eval_traces.add(layout, trace)
        return layout

    @functools.cached_property
    def _eval_traces(self) -> StepTraces:
        return StepTraces()

    def eval_cost(self, layout: MetricLayout, carry: Carry) -> StepCost | None:
        """What the evaluation step does; see `step_cost`."""
        return self._eval_traces.cost(layout, carry._replace(opt_state=None), changes_state=False)

    def _discover(
        self, step: Callable, carry: Carry, batch: Any, recorder: MetricRecorder, name: str
    ) -> tuple[MetricLayout, StepTrace | None]:
        """The metrics of a step function, and its trace. In debug mode it is run, since its code may look at values."""

        def on_mesh(*args: Any) -> Any:
            with use_mesh_in_trace(self.mesh):
                return step(*args)

        trace = None
        if self.debug:
            step(carry, jax.tree.map(zeros_for_shape, batch), recorder)
        else:
            trace = trace_step(on_mesh, carry, batch, recorder, name)
        return recorder.layout if recorder.layout is not None else MetricLayout(()), trace

    def fresh_vector(self, layout: MetricLayout) -> Any:
        """The metrics before any step, on the device. Never donated, so that one serves every reset."""
        return self.on_all_devices(layout.initial)

    def on_all_devices(self, array: Any) -> Any:
        """An array of the host, whole on every device."""
        return jax.device_put(array, replicated(self.mesh))

    # --- compiled calls -----------------------------------------------------------------------------------------------

    @functools.cached_property
    def _train_calls(self) -> dict[MetricLayout, TrainCall]:
        return {}

    def train_call(self, layout: MetricLayout) -> TrainCall:
        """`call(carry, vector, batch) -> (carry, vector)`, the same function for the same metrics."""
        if layout not in self._train_calls:
            self._train_calls[layout] = self.compile_step(layout, TRAIN_CALL_NAME)
        return self._train_calls[layout]

    def _make_step(self, layout: MetricLayout, carry: Carry, vector: jax.Array, batch: Any) -> tuple[Carry, Any]:
        metrics, trace = Metrics(layout, vector), self._train_traces.to_replay(layout)
        if trace is not None and trace.fits(carry, batch):
            carry, metrics = trace.replay(carry, batch, metrics)
            return carry, metrics.vector
        state, metrics = self.train_step(self.view(carry), batch, metrics)
        return to_carry(state), metrics.vector

    def compile_step(self, layout: MetricLayout, name: str) -> TrainCall:
        """The training step as a program of its own; not compiled in debug mode.

        Args:
            layout: Its metrics.
            name: What it is called in traces and in messages about compilation.
        """
        make_step = fast_in_loops(functools.partial(self._make_step, layout), self._train_traces.outline(layout))

        def step(carry: Carry, vector: jax.Array, batch: Any) -> tuple[Carry, Any]:
            with use_mesh_in_trace(self.mesh):
                return make_step(carry, vector, batch)

        step.__name__ = step.__qualname__ = name
        if self.debug:
            return step
        return jax.jit(
            step,
            donate_argnums=(0,) if self.donate else (),
            in_shardings=(self.carry_shardings, replicated(self.mesh), self.placement.shardings),
            out_shardings=(self.carry_shardings, replicated(self.mesh)),
        )

    @functools.cached_property
    def plans(self) -> dict[tuple[int, ...], Any]:
        """The plans of fused calls so far, on the device. To bring one there takes longer than a short step."""
        return {}

    @functools.cached_property
    def compiled_ahead(self) -> set[tuple[Any, ...]]:
        """For what the training step was compiled ahead: metrics, steps in a call, form of the batches."""
        return set()

    @functools.cached_property
    def _fused_calls(self) -> dict[tuple[MetricLayout, int, bool], FusedCall]:
        return {}

    def report_forms(self) -> list[jax.ShapeDtypeStruct]:
        """What the reports of fused calls look like."""
        sizes = {(capacity, layout.num_words) for layout, capacity, _ in self._fused_calls}
        return [jax.ShapeDtypeStruct(size, jnp.uint32) for size in sizes]

    def fused_call(self, layout: MetricLayout, capacity: int, is_listed: bool) -> FusedCall:
        """`call(carry, vector, plan, batches) -> (carry, vector, reports)`, the same function for the same arguments.

        Args:
            layout: The metrics of a step.
            capacity: How many steps it can make; see `fused_steps`.
            is_listed: Whether it takes as many batches, each by itself, and not one with a dimension more.
        """
        key = layout, capacity, is_listed
        if key not in self._fused_calls:
            self._fused_calls[key] = self._compile_fused(*key)
        return self._fused_calls[key]

    def _compile_fused(self, layout: MetricLayout, capacity: int, is_listed: bool) -> FusedCall:
        placement, places = self.placement, (self.carry_shardings, replicated(self.mesh))
        make_one = fast_in_loops(
            functools.partial(self._make_step, layout), self._train_traces.outline(layout), is_looped=True
        )

        def make_step(carry: Carry, vector: jax.Array, batch: Any) -> tuple[Carry, Any]:
            if self.mesh.size == 1:
                return make_one(carry, vector, batch)
            batch = jax.lax.with_sharding_constraint(batch, placement.shardings)
            return jax.lax.with_sharding_constraint(make_one(carry, vector, batch), places)

        def train_call(carry: Carry, vector: jax.Array, plan: jax.Array, batches: Any) -> tuple[Carry, Any, Any]:
            if is_listed:
                batches = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
            with use_mesh_in_trace(self.mesh):
                return run_planned_steps(make_step, layout, carry, vector, plan, batches)

        assert train_call.__name__ == TRAIN_CALL_NAME
        batches = (placement.shardings,) * capacity if is_listed else placement.stacked_shardings
        return jax.jit(
            train_call,
            donate_argnums=(0,) if self.donate else (),
            in_shardings=(*places, replicated(self.mesh), batches),
            out_shardings=(*places, replicated(self.mesh)),
        )

    def compile_eval(self, layout: MetricLayout, is_split: bool) -> Callable:
        """`call(carry, vector, batch) -> vector`; the carry has no optimizer state.

        Args:
            layout: The metrics.
            is_split: Whether batches are split over the mesh, and not whole on every device.
        """
        evaluate = fast_in_loops(functools.partial(self._evaluate, layout), self._eval_traces.outline(layout))

        def eval_call(carry: Carry, vector: jax.Array, batch: Any) -> Any:
            with use_mesh_in_trace(self.mesh):
                return evaluate(carry, vector, batch)

        shardings = (replicated(self.mesh), self._batch_shardings(is_split))
        return self._jit_on_pruned(eval_call, shardings, replicated(self.mesh))

    def _evaluate(self, layout: MetricLayout, carry: Carry, vector: jax.Array, batch: Any) -> Any:
        return self.eval_step(self.view(carry), batch, Metrics(layout, vector)).vector

    def compile_fused_eval(self, layout: MetricLayout) -> Callable:
        """`call(carry, vector, num_batches, batches) -> vector`, for stacked batches on one device.

        Args:
            layout: The metrics.
        """
        outline = self._eval_traces.outline(layout)
        evaluate = fast_in_loops(functools.partial(self._evaluate, layout), outline, is_looped=True)

        def eval_call(carry: Carry, vector: jax.Array, num_batches: jax.Array, batches: Any) -> Any:
            with use_mesh_in_trace(self.mesh):
                return evaluate_batches(functools.partial(evaluate, carry), vector, num_batches, batches)

        shardings = (replicated(self.mesh), replicated(self.mesh), self.placement.stacked_shardings)
        return self._jit_on_pruned(eval_call, shardings, replicated(self.mesh))

    def compile_predict(self, predict: Callable, is_split: bool) -> Callable:
        """`call(carry, batch) -> outputs`. Of several processes, each holds the outputs for its own examples.

        Args:
            predict: The prediction for a state and a batch.
            is_split: As for `compile_eval`.
        """
        predict_one = self._prediction(predict)

        def predict_call(carry: Carry, batch: Any) -> Any:
            with use_mesh_in_trace(self.mesh):
                return predict_one(carry, batch)

        by_examples = NamedSharding(self.mesh, PartitionSpec(batch_axes(self.mesh)))
        outputs = by_examples if self.processes.are_several else None
        return self._jit_on_pruned(predict_call, (self._batch_shardings(is_split),), outputs)

    def compile_fused_predict(self, predict: Callable) -> Callable:
        """`call(carry, num_batches, batches) -> outputs` with one more dimension, for stacked batches on one device.

        Args:
            predict: As for `compile_predict`.
        """
        predict_one = self._prediction(predict, is_looped=True)

        def predict_call(carry: Carry, num_batches: jax.Array, batches: Any) -> Any:
            with use_mesh_in_trace(self.mesh):
                return predict_batches(functools.partial(predict_one, carry), num_batches, batches)

        return self._jit_on_pruned(predict_call, (replicated(self.mesh), self.placement.stacked_shardings), None)

    def _prediction(self, predict: Callable, is_looped: bool = False) -> Callable:
        outline = self._predict_outlines.get(predict)
        return fast_in_loops(lambda carry, batch: predict(self.view(carry), batch), outline, is_looped)

    @functools.cached_property
    def _predict_outlines(self) -> dict[Callable, Any]:
        return {}

    def predict_cost(self, predict: Callable, carry: Carry) -> tuple[StepCost, int] | None:
        """What a prediction does, and how many bytes its outputs have; None where nothing is compiled.

        Args:
            predict: As for `compile_predict`.
            carry: The current state.
        """
        if self.debug:
            return None
        carry, batch = carry._replace(opt_state=None), jax.tree.map(zeros_for_shape, self.placement.exmp_batch)
        outline = jax.make_jaxpr(lambda carry, batch: predict(self.view(carry), batch))(carry, batch)
        self._predict_outlines[predict] = outline
        num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in outline.out_avals)
        return cost_of(outline, carry, keeps_form=True), num_bytes

    def _batch_shardings(self, is_split: bool) -> Any:
        return self.placement.shardings if is_split else replicated(self.mesh)

    def _jit_on_pruned(self, call: Callable, in_shardings: tuple, out_shardings: Any) -> Callable:
        if self.debug:
            return call
        pruned = self.carry_shardings._replace(opt_state=None)
        return jax.jit(call, in_shardings=(pruned, *in_shardings), out_shardings=out_shardings)

    def traced_step(self, layout: MetricLayout, carry: Carry, vector: Any, batch_form: Any) -> Any:
        """The training step as it was traced when it was compiled, which JAX remembers: nothing is traced again.

        Args:
            layout: Its metrics.
            carry: The current state.
            vector: Its metrics on the device.
            batch_form: The form of the batches that it was compiled for.

        Returns:
            What `jit(...).trace` gives; None where nothing is compiled, as in debug mode.
        """
        trace = getattr(self._train_calls.get(layout), "trace", None)
        return None if trace is None else trace(*jax.tree.map(_form, (carry, vector)), batch_form)


def _form(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
