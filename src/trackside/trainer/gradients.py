"""Loss and gradients of a batch, in one piece or by microbatches.

The result is the same either way, within float tolerance: each microbatch counts as much as its items, which is the
count of its `loss` metric, or its number of examples where it has none.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trackside.errors import DataError, MetricError
from trackside.measured_run.batch_size import batch_size
from trackside.metrics import StepMetric, add_step_metrics
from trackside.metrics.step_metric import count_as_float, split_log_modes
from trackside.trainer.loss_scale import scaled, unscaled
from trackside.trainer.models.adapter import INTERMEDIATES
from trackside.trainer.models.casting import Casting, in_types_of

LOGGER = logging.getLogger(__name__)

_MAX_SCANNED = 256
_NO_INTERMEDIATES = (
    "log_intermediates=True, but loss_function returned no intermediates, so none are logged; call the model with "
    "`output, updates = apply_fn(..., mutable=['intermediates'])` and return `loss, (metrics, updates)`"
)


class LossResult(NamedTuple):
    """What a loss function says of a batch."""

    loss: jax.Array
    metrics: dict[str, StepMetric]
    mutable_variables: Any


@dataclass
class LossEvaluator:
    """Calls the user's loss function and brings what it returns into one form.

    Log modes are strings and cannot leave `grad`; they are kept here while the step is traced.
    """

    evaluate_loss: Callable
    """`evaluate_loss(params, mutable_variables, batch, rng, train) -> loss, (metrics, updated variables)`."""
    intermediates_log_modes: tuple[str, ...] | None = None
    """How intermediates are logged; None leaves them out."""
    casting: Casting | None = None
    """In mixed precision: in which type the loss is, and that the model's variables keep theirs."""
    log_modes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set, init=False, repr=False)

    def __call__(self, params: Any, mutable_variables: Any, batch: Any, rng: Any, train: bool) -> LossResult:
        """The loss, metrics and new mutable variables of a batch."""
        returned = self.evaluate_loss(params, mutable_variables, batch, rng, train=train)
        loss, step_metrics, updates = _check_structure(returned)
        metrics, modes = split_log_modes(step_metrics)
        updates = dict(updates or {})
        if self.casting is not None:
            loss, updates = self.casting.to_output(loss), in_types_of(mutable_variables, updates)
        intermediates = updates.pop(INTERMEDIATES, None)
        if self.intermediates_log_modes is not None and not intermediates:
            self._warn_once(_NO_INTERMEDIATES)
        elif intermediates and self.intermediates_log_modes is not None:
            scalars, _ = split_log_modes(name_intermediates(intermediates))
            metrics.update(scalars)
            modes.update(dict.fromkeys(scalars, self.intermediates_log_modes))
        if "loss" not in metrics:
            num_examples = batch_size(batch)
            total = loss.astype(_sum_dtype(loss.dtype)) * num_examples
            metrics.update(split_log_modes({"loss": {"value": total, "count": num_examples}})[0])
        self.log_modes.update(modes)
        return LossResult(loss, metrics, _kept(mutable_variables, updates))

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:  # the step is traced more than once
            self._warned.add(message)
            LOGGER.warning("%s", message)


def _check_structure(returned: Any) -> tuple[jax.Array, Any, Any]:
    expected = "loss_function: expected it to return loss, (metrics, mutable_variables)"
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise MetricError(f"{expected}; got {_describe(returned)}")
    loss, aux = returned
    if not (isinstance(aux, tuple) and len(aux) == 2):
        raise MetricError(f"{expected}; got loss, {_describe(aux)}. Without mutable variables: loss, (metrics, None)")
    metrics, updates = aux
    if not (updates is None or isinstance(updates, Mapping)):
        raise MetricError(f"{expected}; got {_describe(updates)} as mutable variables instead of a dict or None")
    try:
        loss = jnp.asarray(loss)
    except (TypeError, ValueError):
        raise MetricError(f"the loss function: expected a scalar float as loss, got {_describe(loss)}") from None
    if loss.shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        fix = "; reduce it, as with .mean()" if loss.shape else ""
        raise MetricError(
            f"the loss function: expected a scalar float as loss, got {loss.dtype}{list(loss.shape)}{fix}"
        )
    return loss, metrics, updates


def _describe(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, jax.Array):  # a tracer's class says nothing to the reader
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__


def _kept(mutable_variables: Any, updates: dict[str, Any]) -> Any:
    """The new mutable variables: collections that the model had from the start, with unchanged form."""
    if not mutable_variables:
        return mutable_variables
    kept = dict(mutable_variables)
    for name, new in updates.items():
        if name not in kept:
            continue  # sown into, but not part of the model's state
        old_form, new_form = _form(kept[name]), _form(new)
        if old_form != new_form:
            raise MetricError(
                f"mutable variables {name!r}: a step must keep their form; they were {old_form} and became {new_form}"
            )
        kept[name] = new
    return kept


def _form(tree: Any) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def name_intermediates(intermediates: Any) -> dict[str, Any]:
    """The values that a model has sown, by their path: `intermediates/block_0/scale`.

    A value that is sown once keeps that name; of several, the later ones get a number. What layers under `nn.scan` have
    sown is one array, and is named by layer: `intermediates/layers/scale/0`.
    """
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(intermediates):
        keys = [str(getattr(key, "key", getattr(key, "idx", key))) for key in path]
        if isinstance(path[-1], jax.tree_util.SequenceKey):
            keys = keys[:-1] if path[-1].idx == 0 else [*keys[:-2], f"{keys[-2]}_{keys[-1]}"]
        name = "/".join(["intermediates", *keys])
        if jnp.ndim(leaf) == 0:
            named[name] = leaf
        elif jnp.ndim(leaf) == 1 and len(leaf) <= _MAX_SCANNED:
            named.update({f"{name}/{layer}": leaf[layer] for layer in range(len(leaf))})
        else:
            raise MetricError(
                f"{name}: log_intermediates=True logs scalars, and {_describe(jnp.asarray(leaf))} was sown; sow a "
                "number, such as `x.mean()`"
            )
    return named


def compute_gradients(
    evaluate: LossEvaluator,
    params: Any,
    mutable_variables: Any,
    batch: Any,
    rng: Any,
    num_microbatches: int = 1,
    use_scan: bool = False,
    loss_scale: jax.Array | None = None,
) -> tuple[LossResult, Any]:
    """Loss, metrics and gradients of a batch.

    Args:
        evaluate: The loss.
        params: The parameters.
        mutable_variables: Batch statistics and the like; each microbatch sees those of the one before.
        batch: The whole batch.
        rng: The step's key; microbatches fold in their number.
        num_microbatches: Into how many parts the batch is split.
        use_scan: Whether to go through them by scan.
        loss_scale: What the loss is multiplied by while it is differentiated; None for nothing.

    Returns:
        The result for the whole batch and the gradients, both as if there was no scale.
    """

    def loss_of(params: Any, mutable_variables: Any, batch: Any, rng: Any) -> tuple[jax.Array, LossResult]:
        with jax.named_scope("loss"):
            result = evaluate(params, mutable_variables, batch, rng, train=True)
        return scaled(result.loss, loss_scale), result

    gradient_of = jax.value_and_grad(loss_of, has_aux=True)
    if num_microbatches == 1:
        (_, result), grads = gradient_of(params, mutable_variables, batch, rng)
        return result, unscaled(grads, loss_scale)
    parts = split_batch(batch, num_microbatches)

    def add_part(total: Any, index: Any) -> tuple[Any, tuple[jax.Array, dict[str, StepMetric]]]:
        grads, loss, mutable = total
        part = jax.tree.map(lambda leaf: leaf[index], parts)
        (_, result), part_grads = gradient_of(params, mutable, part, jax.random.fold_in(rng, index))
        weight = count_as_float(result.metrics["loss"].num_items)
        grads = jax.tree.map(lambda total, grad: total + _weighted(weight, grad, total.dtype), grads, part_grads)
        loss = loss + _weighted(weight, result.loss, jnp.float32)
        return (grads, loss, result.mutable_variables), (weight, result.metrics)

    total = (jax.tree.map(_accumulator_like, params), jnp.zeros((), jnp.float32), mutable_variables)
    if use_scan:
        total, stacked = jax.lax.scan(add_part, total, jnp.arange(num_microbatches))
        said = [jax.tree.map(lambda leaf, at=at: leaf[at], stacked) for at in range(num_microbatches)]
    else:
        said = []
        for index in range(num_microbatches):
            total, one = add_part(total, index)
            said.append(one)
    result, grads = _whole(params, total, said)
    return result, unscaled(grads, loss_scale)


def _whole(params: Any, total: Any, said: list[tuple[jax.Array, dict[str, StepMetric]]]) -> tuple[LossResult, Any]:
    """The microbatches' sums as the result of the whole batch."""
    grads, loss, mutable_variables = total
    weight, metrics = said[0]
    for other_weight, other_metrics in said[1:]:
        weight = weight + other_weight
        metrics = add_step_metrics(metrics, other_metrics)
    # A batch without any item has no gradient; it must not turn into 0 / 0.
    scale = 1 / jnp.where(weight > 0, weight, 1)
    grads = jax.tree.map(lambda grad, param: (grad * scale).astype(param.dtype), grads, params)
    return LossResult(loss * scale, metrics, mutable_variables), grads


def _weighted(weight: jax.Array, value: jax.Array, dtype: Any) -> jax.Array:
    """A microbatch's part of the sum. One without any item has none, also where its own mean was 0 / 0."""
    return jnp.where(weight > 0, weight.astype(dtype) * value.astype(dtype), 0)


def _accumulator_like(param: jax.Array) -> jax.Array:
    """Zeros in which gradients add up."""
    return jnp.zeros_like(param, dtype=_sum_dtype(param.dtype))


def _sum_dtype(dtype: Any) -> Any:
    """The type in which values of a type are summed: float32 at least. Says so itself, for strict promotion."""
    return dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32


def split_batch(batch: Any, num_parts: int) -> Any:
    """Give every leaf a leading dimension of microbatches.

    Examples are dealt out in turn and not cut in blocks, so that on a mesh each device's examples stay where they are.
    """
    num_examples = batch_size(batch)
    if num_examples % num_parts:
        raise DataError(
            f"batch of {num_examples} examples: not divisible by gradient_accumulate_steps={num_parts}; change either"
        )

    def split(leaf: Any) -> Any:
        if not jnp.ndim(leaf):
            return jnp.broadcast_to(leaf, (num_parts,))
        dealt = leaf.reshape(leaf.shape[0] // num_parts, num_parts, *leaf.shape[1:])
        return jnp.swapaxes(dealt, 0, 1)

    return jax.tree.map(split, batch)
