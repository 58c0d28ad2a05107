"""The step functions: what happens on the device, written as for one device.

`train_step(state, batch, metrics) -> (state, metrics)` and `eval_step(state, batch, metrics) -> metrics` are what
users may replace. The compiled functions around them take and return plain containers only.

The accumulated metrics are the one small vector that a call returns: the loop waits for it to bound the steps in
flight, reads the finite flag in it, and copies it where a row is logged. It is not donated. Donating some hundred bytes
saves nothing, while a vector that stays valid needs no second copy as a report, and starting again after a log row is
passing another array (measured: 8 to 15 us less per step than a donated vector with a copy and a reset flag).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trackside.metrics import MetricLayout, Metrics, StepMetric
from trackside.metrics.packed import MetricRecorder
from trackside.metrics.step import split_log_modes
from trackside.trainer.config import TrainerConfig
from trackside.trainer.gradients import LossEvaluator, compute_gradients
from trackside.trainer.sharding import batch_axes, replicated, use_mesh_in_trace
from trackside.trainer.state import Carry, TrainState, to_carry, typed_key

SKIPPED = "skipped"
"""The metric that counts batches that were left out."""

TRAIN_CALL_NAME = "train_call"
"""What the compiled training step is called in traces and in messages about compilation."""

TrainStep = Callable[[TrainState, Any, Metrics], tuple[TrainState, Metrics]]
EvalStep = Callable[[TrainState, Any, Metrics], Metrics]


def build_train_step(config: TrainerConfig, evaluate: LossEvaluator) -> TrainStep:
    """The training step: gradients, update, norms, metrics, finite check."""

    def train_step(state: TrainState, batch: Any, metrics: Metrics) -> tuple[TrainState, Metrics]:
        rng = jax.random.fold_in(state.rng, state.step)
        result, grads = compute_gradients(
            evaluate,
            state.params,
            state.mutable_variables,
            batch,
            rng,
            config.gradient_accumulate_steps,
            config.gradient_accumulate_scan,
        )
        with jax.named_scope("update"):
            new_state = state.apply_gradients(grads, mutable_variables=result.mutable_variables)
        with jax.named_scope("metrics"):
            norms, grad_norm = _norm_metrics(config, grads, new_state.params)
            step_metrics = split_log_modes({**result.metrics, **norms})[0]
            finite = jnp.isfinite(result.loss) & jnp.isfinite(grad_norm)
            if config.skip_bad_batches:
                new_state = _keep_if(finite, new_state, state.replace(step=new_state.step))
                step_metrics = _without_items_unless(finite, step_metrics)
                step_metrics.update(split_log_modes({SKIPPED: jnp.where(finite, 0.0, 1.0)})[0])
            must_stop = config.check_for_nan and not config.skip_bad_batches
            metrics = metrics.update(step_metrics, evaluate.log_modes, finite=finite if must_stop else True)
        return new_state, metrics

    return train_step


def _keep_if(condition: jax.Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jax.lax.select(jnp.broadcast_to(condition, jnp.shape(a)), a, b), new, old)


def _without_items_unless(condition: jax.Array, metrics: dict[str, StepMetric]) -> dict[str, StepMetric]:
    """The metrics as they are, or as those of a step that had no items."""
    return jax.tree.map(lambda word: jnp.where(condition, word, jnp.zeros_like(word)), metrics)


def _norm_metrics(config: TrainerConfig, grads: Any, params: Any) -> tuple[dict[str, Any], jax.Array]:
    metrics: dict[str, Any] = {}
    grad_norm = _global_norm(grads)
    if config.log_grad_norm:
        metrics["grad_norm"] = grad_norm
    if config.log_param_norm:
        metrics["param_norm"] = _global_norm(params)
    if config.log_grad_norm_per_param:
        metrics.update(_norm_per_leaf("grad_norm", grads))
    if config.log_param_norm_per_param:
        metrics.update(_norm_per_leaf("param_norm", params))
    return metrics, grad_norm


def _squares(leaf: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(jnp.abs(leaf).astype(jnp.float32)))


def _global_norm(tree: Any) -> jax.Array:
    """The norm over all leaves, in float32 also where they have fewer bits."""
    if jax.default_backend() == "cpu":
        # Fused into what makes the leaves, the sums split a small step over threads that wait for each other. Behind a
        # barrier a tiny MLP's step takes 0.7x the time, a CNN's 0.9x. Not measured elsewhere, so left alone there.
        tree = jax.lax.optimization_barrier(tree)
    return jnp.sqrt(sum((_squares(leaf) for leaf in jax.tree.leaves(tree)), start=jnp.zeros((), jnp.float32)))


def _norm_per_leaf(name: str, tree: Any) -> dict[str, jax.Array]:
    return {
        f"{name}/{jax.tree_util.keystr(path, simple=True, separator='/')}": jnp.sqrt(_squares(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def build_eval_step(config: TrainerConfig, evaluate: LossEvaluator) -> EvalStep:
    """The evaluation step: the loss function with `train=False`, the same key for the same batch each time."""

    def eval_step(state: TrainState, batch: Any, metrics: Metrics) -> Metrics:
        rng = jax.random.fold_in(jax.random.key(config.seed_eval), metrics.num_steps)
        result = evaluate(state.params, state.mutable_variables, batch, rng, train=False)
        return metrics.update(result.metrics)

    return eval_step


@dataclass(frozen=True)
class StepCompiler:
    """Turns step functions on states into functions on plain containers, compiled for a mesh."""

    mesh: Mesh
    carry_shardings: Carry
    """How the state lies on the mesh."""
    view: Callable[[Carry], TrainState]
    """Makes the state that step functions see."""
    donate: bool
    debug: bool

    def discover_layout(self, step: Callable, carry: Any, batch: Any, recorder: MetricRecorder) -> MetricLayout:
        """Trace a step function without running it, to learn which metrics it has.

        In debug mode it is run, and the result dropped: the user's code may look at values.
        """
        if self.debug:
            step(self.view(carry), jax.tree.map(_zeros_for_shape, batch), recorder)
            return recorder.layout if recorder.layout is not None else MetricLayout(())

        def trace(carry: Carry, batch: Any) -> None:
            with use_mesh_in_trace(self.mesh):
                step(self.view(carry), batch, recorder)

        jax.eval_shape(trace, carry, batch)
        return recorder.layout if recorder.layout is not None else MetricLayout(())

    def compile_train(self, train_step: TrainStep, layout: MetricLayout, batch_shardings: Any) -> Callable:
        """`call(carry, vector, batch) -> (carry, vector)`."""

        def train_call(carry: Carry, vector: jax.Array, batch: Any) -> tuple[Carry, Any]:
            with use_mesh_in_trace(self.mesh):
                state, metrics = train_step(self.view(carry), batch, Metrics(layout, vector))
            return to_carry(state), metrics.vector

        assert train_call.__name__ == TRAIN_CALL_NAME
        if self.debug:
            return train_call
        return jax.jit(
            train_call,
            donate_argnums=(0,) if self.donate else (),
            in_shardings=(self.carry_shardings, replicated(self.mesh), batch_shardings),
            out_shardings=(self.carry_shardings, replicated(self.mesh)),
        )

    def compile_eval(self, eval_step: EvalStep, layout: MetricLayout, batch_shardings: Any) -> Callable:
        """`call(carry, vector, batch) -> vector`; the carry has no optimizer state."""

        def eval_call(carry: Carry, vector: jax.Array, batch: Any) -> Any:
            with use_mesh_in_trace(self.mesh):
                return eval_step(self.view(carry), batch, Metrics(layout, vector)).vector

        return self._jit_on_pruned(eval_call, (replicated(self.mesh), batch_shardings), replicated(self.mesh))

    def compile_predict(self, predict: Callable, batch_shardings: Any) -> Callable:
        """`call(carry, batch) -> outputs`. Of several processes, each holds the outputs for its own examples."""

        def predict_call(carry: Carry, batch: Any) -> Any:
            with use_mesh_in_trace(self.mesh):
                return predict(self.view(carry), batch)

        by_examples = NamedSharding(self.mesh, PartitionSpec(batch_axes(self.mesh)))
        return self._jit_on_pruned(predict_call, (batch_shardings,), by_examples if jax.process_count() > 1 else None)

    def _jit_on_pruned(self, call: Callable, in_shardings: tuple, out_shardings: Any) -> Callable:
        if self.debug:
            return call
        pruned = self.carry_shardings._replace(opt_state=None)
        return jax.jit(call, in_shardings=(pruned, *in_shardings), out_shardings=out_shardings)


def _zeros_for_shape(leaf: Any) -> Any:
    return jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf


def view_carry(carry: Carry, apply_fn: Callable, tx: Any) -> TrainState:
    """The state that step functions, hooks and callbacks see."""
    return TrainState(
        step=carry.step,
        params=carry.params,
        opt_state=carry.opt_state,
        mutable_variables=carry.mutable_variables or None,
        rng=typed_key(carry.rng),
        apply_fn=apply_fn,
        tx=tx,
    )
