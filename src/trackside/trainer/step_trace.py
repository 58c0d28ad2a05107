"""What a step function does, as a jaxpr. Tracing runs the user's code, which takes seconds for a large model.

The step is traced to learn its metrics. The program of the first call is then made from that, instead of from the
user's code once more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from trackside.metrics import MetricLayout
from trackside.metrics.packed import MetricRecorder, Metrics
from trackside.trace.flops import count_flops
from trackside.trainer.steps_per_call import StepCost
from trackside.trainer.train_state import Carry


@dataclass(frozen=True)
class StepTrace:
    """A step function that was traced."""

    jaxpr: core.ClosedJaxpr
    """What leads from a state, a batch and the number of steps before to the next state, then to what is logged."""
    inputs: Any
    """The tree of its inputs."""
    outputs: Any
    """The tree of its outputs."""
    can_replay: bool
    """Whether all that it does with the metrics is to add those of the step."""

    def fits(self, carry: Carry, batch: Any) -> bool:
        """Whether it was traced for arrays of these forms."""
        leaves, tree = jax.tree.flatten((carry, batch, np.uint32(0)))
        return tree == self.inputs and [_form(jax.typeof(leaf)) for leaf in leaves] == [
            _form(kind) for kind in self.jaxpr.in_avals
        ]

    def replay(self, carry: Carry, batch: Any, metrics: Metrics) -> tuple[Carry, Metrics]:
        """Make the step.

        Args:
            carry: The state.
            batch: The batch.
            metrics: Those of the steps before.
        """
        leaves = jax.tree.leaves((carry, batch, metrics.num_steps))
        results = map(jnp.asarray, core.jaxpr_as_fun(self.jaxpr)(*leaves))  # constants come as NumPy's
        state, update = jax.tree.unflatten(self.outputs, results)
        with jax.named_scope("metrics"):
            return state, metrics.update(**update)


def trace_step(step: Callable, carry: Carry, batch: Any, recorder: MetricRecorder, name: str) -> StepTrace:
    """Trace a step function without running it.

    Args:
        step: Leads from a state, a batch and metrics to the next state and metrics.
        carry: The state, or its form.
        batch: The batch, or its form.
        recorder: Takes the place of the metrics.
        name: What the program will be called that this is for.
    """
    is_whole = False

    def traced(carry: Carry, batch: Any, num_steps: jax.Array) -> tuple[Any, Any]:
        nonlocal is_whole
        state, metrics = step(carry, batch, recorder.begin(num_steps))
        is_whole = isinstance(metrics, MetricRecorder) and len(metrics.updates) == 1
        return state, metrics.updates[0] if is_whole else None

    traced.__name__ = traced.__qualname__ = name
    inputs = carry, batch, np.uint32(0)
    jaxpr, shapes = jax.make_jaxpr(traced, return_shape=True)(*inputs)
    return StepTrace(jaxpr, jax.tree.structure(inputs), jax.tree.structure(shapes), is_whole)


class StepTraces:
    """What was traced of a step function, by the metrics that it has."""

    def __init__(self) -> None:
        self._outlines: dict[MetricLayout, Any] = {}
        self._to_replay: dict[MetricLayout, StepTrace] = {}
        self._costs: dict[MetricLayout, StepCost] = {}

    def add(self, layout: MetricLayout, trace: StepTrace | None) -> None:
        """Keep the last trace of a step.

        Args:
            layout: Its metrics.
            trace: The trace; None if it was run instead, as in debug mode.
        """
        self._outlines[layout] = None if trace is None else trace.jaxpr
        if trace is not None and trace.can_replay:
            self._to_replay[layout] = trace
        self._costs.pop(layout, None)

    def outline(self, layout: MetricLayout) -> Any:
        """The jaxpr that a step with these metrics begins with; None where nothing was traced."""
        return self._outlines.get(layout)

    def to_replay(self, layout: MetricLayout) -> StepTrace | None:
        """The trace that programs may be made from instead of the user's code, if there is one."""
        return self._to_replay.get(layout)

    def forbid_replay(self) -> None:
        """Make no programs from the traces so far."""
        self._to_replay.clear()

    def cost(self, layout: MetricLayout, carry: Carry, changes_state: bool = True) -> StepCost | None:
        """What a step does; None where nothing was traced.

        Args:
            layout: Its metrics.
            carry: What it is given of the state.
            changes_state: Whether it gives that back, changed.
        """
        outline = self._outlines.get(layout)
        if outline is not None and layout not in self._costs:
            forms = [_plain_form(leaf) for leaf in jax.tree.leaves(carry)] if changes_state else []
            results = [_plain_form(leaf) for leaf in outline.out_avals[: len(forms)]]  # what is logged comes after it
            self._costs[layout] = cost_of(outline, carry, results == forms)
        return self._costs.get(layout)


def cost_of(outline: Any, carry: Carry, keeps_form: bool) -> StepCost:
    """What a program does.

    Args:
        outline: Its jaxpr.
        carry: What it is given of the state.
        keeps_form: Whether it gives that back in the same form.
    """
    table = count_flops(outline)
    return StepCost(
        flops=sum(row.flops for row in table.rows),
        other_flops=sum(row.other_flops for row in table.rows),
        num_bytes=sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(carry)),
        keeps_form=keeps_form,
    )


def _plain_form(leaf: Any) -> tuple[tuple[int, ...], Any]:
    return tuple(leaf.shape), leaf.dtype


def _form(kind: Any) -> tuple[tuple[int, ...], Any, bool]:
    return kind.shape, kind.dtype, kind.weak_type
