"""Several training steps, evaluations or predictions in one call of a compiled program.

The program is a loop over stacked batches that runs as many steps as its plan says, so one program serves any number of
steps up to its capacity, and nothing compiles for a remainder. Every step has the same instructions whatever the number
of steps around it: any division of the same steps into calls gives the same result, to the last bit.

The call returns the metrics as they were after each step, from which log rows, hooks and the finite check are replayed
as if the steps had been made one by one. It stops after the first step that is not finite.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trackside.fusing.loops import item_at, places_for, with_outputs
from trackside.metrics import MetricLayout
from trackside.metrics.layout import NOT_FINITE

NO_STEP, STEP, STEP_AFTER_ROW = 0, 1, 2
"""The words of a plan: no step; a step; a step whose metrics start from zero, since the one before has a log row."""
NOT_MADE = 2**32 - 1
"""What the metrics after a step that was not made have in the place of their number of steps.

Not 0: a step function of the user's need not report metrics.
"""


def plan_steps(capacity: int, num_steps: int, step: int, log_every_n_steps: int) -> np.ndarray:
    """The plan of a call.

    Args:
        capacity: How many steps the program can make.
        num_steps: How many it shall make.
        step: The last step before the call.
        log_every_n_steps: After how many steps there is a log row; -1 for never.
    """
    plan = np.full(capacity + 1, NO_STEP, np.int32)  # the last word is always the end
    plan[:num_steps] = STEP
    if log_every_n_steps > 0:
        plan[-step % log_every_n_steps : num_steps : log_every_n_steps] = STEP_AFTER_ROW
    return plan


def run_planned_steps(
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    layout: MetricLayout,
    carry: Any,
    vector: jax.Array,
    plan: jax.Array,
    batches: Any,
) -> tuple[Any, jax.Array, jax.Array]:
    """Make the steps of a plan.

    Args:
        step: `step(carry, vector, batch) -> (carry, vector)`.
        layout: The metrics in the vector.
        carry: The state.
        vector: The metrics so far.
        plan: What `plan_steps` gives.
        batches: A batch whose leaves have one more dimension in front, for the steps.

    Returns:
        The state, the metrics after the last step, and the metrics after each step; see `NOT_MADE`.
    """
    capacity = len(plan) - 1

    def goes_on(loop: tuple) -> jax.Array:
        index, _, vector, _ = loop
        return (plan[index] != NO_STEP) & ((vector[0] & np.uint32(NOT_FINITE)) == 0)

    def make_step(loop: tuple) -> tuple:
        index, carry, vector, reports = loop
        batch = item_at(batches, index)
        with jax.named_scope("metrics"):
            vector = jnp.where(plan[index] == STEP_AFTER_ROW, layout.initial, vector)
        carry, vector = step(carry, vector, batch)
        with jax.named_scope("metrics"):
            reports = jax.lax.dynamic_update_index_in_dim(reports, vector, index, 0)
        return index + 1, carry, vector, reports

    reports = np.zeros((capacity, layout.num_words), np.uint32)
    reports[:, 1] = NOT_MADE
    _, carry, vector, reports = jax.lax.while_loop(
        goes_on, make_step, (jnp.int32(0), carry, vector, jnp.asarray(reports))
    )
    return carry, vector, reports


def evaluate_batches(
    evaluate: Callable[[Any, Any], Any], vector: jax.Array, num_batches: jax.Array, batches: Any
) -> jax.Array:
    """Evaluate the first of the stacked batches.

    Args:
        evaluate: `evaluate(vector, batch) -> vector`.
        vector: The metrics so far.
        num_batches: How many of the batches are there.
        batches: A batch whose leaves have one more dimension in front.
    """

    def evaluate_next(loop: tuple) -> tuple:
        index, vector = loop
        return index + 1, evaluate(vector, item_at(batches, index))

    return jax.lax.while_loop(lambda loop: loop[0] < num_batches, evaluate_next, (jnp.int32(0), vector))[1]


def predict_batches(predict: Callable[[Any], Any], num_batches: jax.Array, batches: Any) -> Any:
    """The outputs for the first of the stacked batches, with one more dimension in front; zeros for the others.

    Args:
        predict: `predict(batch) -> outputs`.
        num_batches: How many of the batches are there.
        batches: A batch whose leaves have one more dimension in front.
    """
    capacity = len(jax.tree.leaves(batches)[0])
    forms = jax.eval_shape(lambda batches: predict(item_at(batches, 0)), batches)

    def predict_next(loop: tuple) -> tuple:
        index, outputs = loop
        return index + 1, with_outputs(outputs, predict(item_at(batches, index)), index)

    first = jnp.int32(0), places_for(forms, capacity)
    return jax.lax.while_loop(lambda loop: loop[0] < num_batches, predict_next, first)[1]


def num_steps_made(report: np.ndarray) -> int:
    """How many steps a call made, from the metrics after each: fewer than planned where one was not finite."""
    return int(np.count_nonzero(report[:, 1] != NOT_MADE))


def first_not_finite(report: np.ndarray) -> int | None:
    """Which step of a call was not finite, counted from 0; None if all were."""
    found = np.flatnonzero(report[:, 0] & NOT_FINITE)
    return int(found[0]) if found.size else None
