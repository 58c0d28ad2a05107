"""The step functions: what happens on the device, written as for one device.

`train_step(state, batch, metrics) -> (state, metrics)` and `eval_step(state, batch, metrics) -> metrics` are what
users may replace. The engine wraps them in compiled calls that take and return plain containers only.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp

from trackside.errors import MetricError
from trackside.metrics import Metrics, StepMetric
from trackside.metrics.step_metric import count_as_float, split_log_modes
from trackside.trainer.gradients import LossEvaluator, compute_gradients
from trackside.trainer.loss_scale import is_overflow, next_loss_scale
from trackside.trainer.optimizer import OptimizerConfig
from trackside.trainer.parameter_groups import FROZEN, group_of
from trackside.trainer.precision import to_precision
from trackside.trainer.train_state import TrainState
from trackside.trainer.trainer_config import TrainerConfig
from trackside.tree_paths import leaf_path

SKIPPED = "skipped"
"""The metric that counts batches that were left out."""
LOSS_SCALE, OVERFLOW = "loss_scale", "overflow"
"""With a scaled loss: the metrics that give the scale, and count steps that were skipped to make it smaller."""

MAX_JOINED_SIZE = 4096
"""Leaves of at most as many numbers are joined before they are summed up."""
LEAVES_PER_JOIN = 128
"""XLA takes longer than in proportion for more."""

TrainStep = Callable[[TrainState, Any, Metrics], tuple[TrainState, Metrics]]
EvalStep = Callable[[TrainState, Any, Metrics], Metrics]


def build_train_step(
    config: TrainerConfig, evaluate: LossEvaluator, optimizer_config: OptimizerConfig | None = None
) -> TrainStep:
    """The training step: gradients, update, norms, metrics, finite check.

    Args:
        config: How to train.
        evaluate: The loss.
        optimizer_config: Which groups of parameters there are, whose norms are logged; None for none.
    """
    precision = to_precision(config.precision)
    scaling = None if precision is None else precision.loss_scale
    own_names = {SKIPPED} if config.skip_bad_batches else set()
    own_names |= {LOSS_SCALE, OVERFLOW} if scaling is not None else set()

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
            None if scaling is None else state.loss_scale.scale,
        )
        with jax.named_scope("update"):
            new_state = state.apply_gradients(grads, result.loss, mutable_variables=result.mutable_variables)
        with jax.named_scope("metrics"):
            norms, grad_norm = _norm_metrics(config, grads, new_state.params)
            if config.log_grad_norm and optimizer_config is not None and optimizer_config.groups:
                norms.update(_norm_per_group(optimizer_config, grads))
            _check_free(result.metrics, own_names | norms.keys())
            step_metrics = split_log_modes({**result.metrics, **norms})[0]
            finite = is_step_finite(result.loss, grad_norm)
            if config.skip_bad_batches or scaling is not None:
                new_state = _keep_if(finite, new_state, state.replace(step=new_state.step))
                step_metrics = _without_items_unless(finite, step_metrics)
            if scaling is not None:
                overflows = is_overflow(scaling, state.loss_scale, finite)
                seen = {LOSS_SCALE: state.loss_scale.scale, OVERFLOW: jnp.where(overflows, 1.0, 0.0)}
                step_metrics.update(split_log_modes(seen)[0])
                new_state = new_state.replace(loss_scale=next_loss_scale(scaling, state.loss_scale, finite))
                finite = finite | overflows
            if config.skip_bad_batches:
                step_metrics.update(split_log_modes({SKIPPED: jnp.where(finite, 0.0, 1.0)})[0])
            must_stop = config.check_for_nan and not config.skip_bad_batches
            metrics = metrics.update(
                step_metrics,
                evaluate.log_modes,
                finite=finite if must_stop else True,
                mean_as_sum=is_mean_as_sum(result.loss, step_metrics["loss"]),
            )
        return new_state, metrics

    return train_step


def _check_free(metrics: Mapping[str, Any], own_names: Set[str]) -> None:
    """Raise if a metric of the loss function has the name of one of the trainer's own."""
    if taken := sorted(metrics.keys() & own_names):
        raise MetricError(
            f"metrics: {taken[0]!r} is a metric of the trainer itself; call yours something else, or switch that one "
            "off, such as by log_grad_norm=False"
        )


def is_step_finite(loss: jax.Array, grad_norm: jax.Array) -> jax.Array:
    """The check that stops a training at NaN. A finite loss may come with gradients that are not, so it takes both."""
    return jnp.isfinite(loss) & jnp.isfinite(grad_norm)


def is_mean_as_sum(loss: jax.Array, metric: StepMetric) -> jax.Array:
    """Whether the sum over several items is no more than the returned loss, as if that was a mean given as a sum."""
    total, loss = metric.value[0] + metric.value[1], loss.astype(jnp.float32)
    is_same = jnp.abs(total - loss) <= 1e-6 * jnp.abs(loss)
    return is_same & (loss != 0) & (count_as_float(metric.num_items) > 1)


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
    return jnp.sum(jnp.square(_magnitudes(leaf)))


def _magnitudes(leaf: jax.Array) -> jax.Array:
    """In float32, also where the leaf has fewer bits. Signs stay: to remove them takes a kernel for each leaf."""
    return (jnp.abs(leaf) if jnp.iscomplexobj(leaf) else leaf).astype(jnp.float32)


def _global_norm(tree: Any) -> jax.Array:
    """The norm over all leaves."""
    leaves = jax.tree.leaves(tree)
    if jax.default_backend() == "cpu":
        # Fused into what makes the leaves, the sums split a small step over threads that wait for each other. Behind a
        # barrier a tiny MLP's step takes 0.7x the time, a CNN's 0.9x. Not measured elsewhere, so left alone there.
        leaves = jax.lax.optimization_barrier(leaves)
    return jnp.sqrt(sum((_squares(leaf) for leaf in _joined(leaves)), start=jnp.zeros((), jnp.float32)))


def _joined(leaves: Sequence[jax.Array]) -> list[jax.Array]:
    """The same numbers in fewer arrays, since each takes a kernel of its own, and XLA a while to compile it.

    On a CPU, steps of small MLPs take 0.6 to 0.85x the time with them, and a sum over 1,000 arrays compiles in a tenth
    of it. Not on several devices: joining arrays may move them from one to another.
    """
    small = [leaf for leaf in leaves if leaf.size <= MAX_JOINED_SIZE]
    if len(small) < 2 or jax.sharding.get_abstract_mesh().size > 1:
        return list(leaves)
    groups = (small[at : at + LEAVES_PER_JOIN] for at in range(0, len(small), LEAVES_PER_JOIN))
    joined = [jnp.concatenate([_magnitudes(leaf).ravel() for leaf in group]) for group in groups]
    return [*jax.lax.optimization_barrier(joined), *(leaf for leaf in leaves if leaf.size > MAX_JOINED_SIZE)]


def _norm_per_leaf(name: str, tree: Any) -> dict[str, jax.Array]:
    return {
        f"{name}/{leaf_path(path)}": jnp.sqrt(_squares(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _norm_per_group(config: OptimizerConfig, grads: Any) -> dict[str, jax.Array]:
    """The norm of the gradients in each group of parameters, and of those in none."""
    members: dict[str, list[jax.Array]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        members.setdefault(group_of(config, leaf_path(path)), []).append(leaf)
    members.pop(FROZEN, None)
    return {f"grad_norm/{name}": _global_norm(leaves) for name, leaves in members.items()}


def build_eval_step(config: TrainerConfig, evaluate: LossEvaluator) -> EvalStep:
    """The evaluation step: the loss function with `train=False`, the same key for the same batch each time."""

    def eval_step(state: TrainState, batch: Any, metrics: Metrics) -> Metrics:
        rng = jax.random.fold_in(jax.random.key(config.seed_eval), metrics.num_steps)
        result = evaluate(state.params, state.mutable_variables, batch, rng, train=False)
        return metrics.update(result.metrics)

    return eval_step
