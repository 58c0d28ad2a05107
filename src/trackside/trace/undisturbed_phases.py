"""What the phases of a step would take if nothing disturbed them, from a window in which something did.

On a CPU, an operation is in progress from its start to its end, whether or not it computes: it may wait for threads
that other operations of the step keep busy, or for a core that another program took. If such time is counted in full,
or shared evenly with what runs meanwhile, a gradient that waits for an update seems to be most of the step. There are
two ways to leave waiting out, which are wrong in different cases:

- `work_s` counts each operation as long as its fastest executions took. It is too long where operations are so long
  that none of their executions went undisturbed, and knows nothing of operations that run side by side.
- `wall_s` divides the time of the fastest steps among the operations that were in progress, each by how fast it made
  progress: its fastest executions, over this one. What disturbs all operations alike changes nothing here; where steps
  seldom went undisturbed, it still contains some waiting.

Where operations run one after the other, as on a single core, `wall_s` is the better one; else it is `work_s`. Where
the two agree, nothing of this matters.
"""

from dataclasses import dataclass

import numpy as np

from trackside.trace.analyse import Analysis
from trackside.trace.overlap import segments_to_completion, share_wall
from trackside.trace.xspace import PS_PER_S

FAST_QUANTILE = 0.1
"""Which of an operation's executions stands for an undisturbed one."""
FAST_STEPS = 0.5
"""Which share of the steps, the fastest ones, is looked at for `wall_s`."""


@dataclass(frozen=True)
class UndisturbedPhases:
    """Seconds of device time by phase, in two ways: see above. Only their ratios mean something."""

    work_s: dict[str, float]
    wall_s: dict[str, float]
    num_in_progress: float
    """How many operations of a device were in progress at a time, in the mean: 1 if they ran one after the other."""


def undisturbed_phases(analysis: Analysis) -> UndisturbedPhases | None:
    """The undisturbed times of the phases of a step; None if nothing was executed.

    Args:
        analysis: A captured window of a few steps.
    """
    ops, of_run = analysis.ops, analysis.runs.of_event
    chosen = np.flatnonzero(np.append(analysis.selected, False)[of_run])
    if not chosen.size:
        return None
    ops, of_run = ops.select(chosen), of_run[chosen]
    span_ps, wall_ps = np.zeros(len(ops)), np.zeros(len(ops))
    of_device = [np.flatnonzero(ops.device == device) for device in np.unique(ops.device)]
    columns = (ops.line, ops.start_ps, ops.end_ps, ops.done_ps)
    segments = [segments_to_completion(*(column[where] for column in columns)) for where in of_device]
    for where, parts in zip(of_device, segments, strict=True):
        lengths = (parts.end_ps - parts.start_ps).astype(float)
        span_ps[where] = np.bincount(parts.event, weights=lengths, minlength=len(where))
    fastest_ps = _fastest(ops.key, span_ps, len(analysis.infos))[ops.key]
    # An operation of no length has no progress to speak of; its weight only has to be positive.
    progress = np.clip(fastest_ps / np.maximum(span_ps, 1.0), 1e-6, 1.0)
    for where, parts in zip(of_device, segments, strict=True):
        shares, _ = share_wall(parts, progress[where][parts.event])
        wall_ps[where] = np.bincount(parts.event, weights=shares, minlength=len(where))
    is_fast = _fast_runs(analysis)[of_run]
    phases = np.array([info.phase for info in analysis.infos], object)[ops.key]
    return UndisturbedPhases(
        work_s=_sum(phases, fastest_ps),
        wall_s=_sum(phases[is_fast], wall_ps[is_fast]),
        num_in_progress=float(span_ps.sum() / max(wall_ps.sum(), 1.0)),
    )


def _fastest(key: np.ndarray, span_ps: np.ndarray, num_keys: int) -> np.ndarray:
    """By operation, how long one of its fastest executions took."""
    order = np.lexsort((span_ps, key))
    counts = np.bincount(key, minlength=num_keys)
    first = np.cumsum(counts) - counts
    executed = np.flatnonzero(counts)
    fastest = np.zeros(num_keys)
    fastest[executed] = span_ps[order][first[executed] + (FAST_QUANTILE * counts[executed]).astype(np.int64)]
    return fastest


def _fast_runs(analysis: Analysis) -> np.ndarray:
    """Which executions are among the fastest of their program; a step may be several programs."""
    runs, is_fast = analysis.runs, np.zeros(len(analysis.runs), bool)
    for program in np.unique(runs.program[analysis.selected]):
        where = np.flatnonzero(analysis.selected & (runs.program == program))
        order = np.argsort((runs.end_ps - runs.start_ps)[where], kind="stable")
        is_fast[where[order[: int(np.ceil(FAST_STEPS * len(where)))]]] = True
    return is_fast


def _sum(phases: np.ndarray, time_ps: np.ndarray) -> dict[str, float]:
    names, inverse = np.unique(phases.astype(str), return_inverse=True)
    return dict(zip(names.tolist(), (np.bincount(inverse, weights=time_ps) / PS_PER_S).tolist(), strict=True))
