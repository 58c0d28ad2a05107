"""Rules on timers: the performance analysis of the profiling guide, for loops that are timed by `TrainingProfiler`.

Times are means per operation. A loop's iteration is one batch and one step, so shares are of the two together; if the
next batch is made while the device computes, an iteration takes less than that.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from trackside.findings.facts import RunFacts
from trackside.findings.finding import Finding
from trackside.text import percent, seconds

DATA = "data_batch_production"
LOSS = "loss_fn_computation"
STEPS = ("make_step_total", "training_step")
"""A complete training step; the first of these that was timed counts."""

MIN_COUNT = 20
"""The first calls compile and fill caches."""
MIN_DATA = 0.3
SEVERE_DATA = 0.6
MIN_LOSS = 0.6
"""Loss and gradient are most of a healthy iteration: above this they are where to continue, not a fault."""
MIN_STEP = 0.8
MAX_LOSS_OF_STEP = 0.7
"""A step that spends less on loss and gradient spends much on something else."""


class _Iteration(NamedTuple):
    """The mean times of one iteration."""

    step_name: str
    step_s: float
    data_s: float
    loss_s: float | None

    @property
    def total_s(self) -> float:
        return self.step_s + self.data_s


def high_data_batch_production(facts: RunFacts) -> Finding | None:
    """Batches take long to produce."""
    iteration = _iteration(facts)
    if iteration is None or (share := iteration.data_s / iteration.total_s) < MIN_DATA:
        return None
    return Finding(
        "high_data_batch_production",
        "severe" if share >= SEVERE_DATA else "warning",
        f"{DATA} takes {percent(share)} of an iteration ({seconds(iteration.data_s)} per batch)",
        {
            "data_share": share,
            "data_batch_production_s": iteration.data_s,
            f"{iteration.step_name}_s": iteration.step_s,
        },
        "optimize data loading: increase num_workers in the DataLoader, use pin_memory=True, preprocess data offline",
    )


def high_loss_fn_computation(facts: RunFacts) -> Finding | None:
    """Loss and gradient are where most of the time goes."""
    iteration = _iteration(facts)
    if iteration is None or iteration.loss_s is None or (share := iteration.loss_s / iteration.total_s) < MIN_LOSS:
        return None
    return Finding(
        "high_loss_fn_computation",
        "info",
        f"{LOSS} takes {percent(share)} of an iteration ({seconds(iteration.loss_s)} per step)",
        {"loss_share": share, "loss_fn_computation_s": iteration.loss_s, f"{iteration.step_name}_s": iteration.step_s},
        "optimize the model: reduce model complexity, use mixed precision training, optimize JAX compilation",
    )


def high_make_step_total(facts: RunFacts) -> Finding | None:
    """The step takes most of the time, and loss and gradient do not explain it."""
    iteration = _iteration(facts)
    if iteration is None or (share := iteration.step_s / iteration.total_s) < MIN_STEP:
        return None
    name, loss_s = iteration.step_name, iteration.loss_s
    if loss_s is not None and loss_s / iteration.step_s >= MAX_LOSS_OF_STEP:
        return None
    evidence: dict[str, float | int | str] = {"step_share": share, f"{name}_s": iteration.step_s}
    title = f"{name} takes {percent(share)} of an iteration"
    if loss_s is not None:
        evidence["loss_of_step_share"] = loss_s / iteration.step_s
        title += f", only {percent(loss_s / iteration.step_s)} of which is {LOSS}"
    return Finding(
        "high_make_step_total",
        "info" if loss_s is None else "warning",
        title,
        evidence,
        "look at the overall training pipeline: profile individual components, consider batch size adjustments, check "
        "for unnecessary computations",
    )


def _iteration(facts: RunFacts) -> _Iteration | None:
    """The times of an iteration; None without batches and steps, or with too few of them."""
    data = _timed(facts.timers.get(DATA))
    step_name = next((name for name in STEPS if name in facts.timers), "")
    step = _timed(facts.timers.get(step_name))
    if data is None or step is None or data + step <= 0:
        return None
    loss = facts.timers.get(LOSS)  # sampled now and then, so a low count does not mean a warm-up
    return _Iteration(step_name, step, data, None if loss is None else loss["avg_time"])


def _timed(summary: Mapping[str, Any] | None) -> float | None:
    return summary["avg_time"] if summary is not None and summary["count"] >= MIN_COUNT else None
