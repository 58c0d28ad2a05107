"""Rules on captures: what device time goes into, by phase of the step. The captures of a run are pooled."""

from trackside.findings.facts import RunFacts
from trackside.findings.finding import Finding
from trackside.text import percent
from trackside.trace.capture_row import analysed_captures
from trackside.trace.trace_report import TraceReport

MIN_CAPTURED_STEPS = 5
"""The shares of single steps vary by a third."""

MIN_OPTIMIZER = 0.25
"""Measured shares of ordinary models are 1 to 7 %."""
SEVERE_OPTIMIZER = 0.5

MIN_RECOMPUTE = 0.1
HIGH_RECOMPUTE = 0.3
"""A step that recomputes its whole forward pass spends a quarter on it, if the backward pass is twice the work."""

MIN_RESOLVED = 0.8
"""With less, the order of a table by scope may be wrong."""


def optimizer_share_high(facts: RunFacts) -> Finding | None:
    """The optimizer takes an unusually large part of device time."""
    share, per_step_s, num_steps = _phase_share(facts, "optimizer")
    if share < MIN_OPTIMIZER:
        return None
    return Finding(
        "optimizer_share_high",
        "severe" if share >= SEVERE_OPTIMIZER else "warning",
        f"the optimizer takes {percent(share)} of device time",
        {
            "optimizer_share": share,
            "optimizer_per_step_s": per_step_s,
            "num_captured_steps": num_steps,
        },
        "make fewer updates with larger batches, use a cheaper optimizer, or shard its state over devices",
    )


def recompute_share(facts: RunFacts) -> Finding | None:
    """Recomputing activations, to save memory, takes a part of device time that is worth knowing."""
    share, per_step_s, num_steps = _phase_share(facts, "recompute")
    if share < MIN_RECOMPUTE:
        return None
    return Finding(
        "recompute_share",
        "warning" if share >= HIGH_RECOMPUTE else "info",
        f"recomputing activations takes {percent(share)} of device time",
        {
            "recompute_share": share,
            "recompute_per_step_s": per_step_s,
            "num_captured_steps": num_steps,
        },
        "if memory allows, checkpoint fewer layers, or keep more with a policy such as "
        "jax.checkpoint_policies.dots_saveable",
    )


def low_coverage(facts: RunFacts) -> Finding | None:
    """The captures do not say where much of the device time comes from."""
    coverages = [report.coverage for report in _reports(facts)]
    busy_s = sum(coverage.busy_s for coverage in coverages)
    resolved_s = sum(coverage.resolved_s for coverage in coverages)
    if not busy_s or resolved_s / busy_s >= MIN_RESOLVED:
        return None
    unattributed = 1 - resolved_s / busy_s
    unsplit = sum(coverage.unsplit_s for coverage in coverages) / busy_s
    advice = "read the tables by scope and phase with care"
    if facts.platform == "gpu":
        advice += "; command buffers hide operations: capture once with XLA_FLAGS=--xla_gpu_enable_command_buffer="
    return Finding(
        "low_coverage",
        "info",
        f"{percent(unattributed)} of the captured device time could not be attributed to one place in your code",
        {
            "unattributed_share": unattributed,
            "unsplit_share": unsplit,
            "busy_s": busy_s,
            "num_captures": len(coverages),
        },
        advice,
    )


def _reports(facts: RunFacts) -> list[TraceReport]:
    return [report for _, report in analysed_captures(facts.captures)]


def _phase_share(facts: RunFacts, phase: str) -> tuple[float, float, int]:
    """A phase's share of the device's time, its seconds per step, and the steps that this is of; 0 with too few."""
    reports = _reports(facts)
    num_steps = sum(report.num_steps or 0 for report in reports)
    phase_s = sum(report.phases.get(phase, 0.0) for report in reports)
    if num_steps < MIN_CAPTURED_STEPS or not phase_s:
        return 0.0, 0.0, num_steps
    return phase_s / sum(sum(report.phases.values()) for report in reports), phase_s / num_steps, num_steps
