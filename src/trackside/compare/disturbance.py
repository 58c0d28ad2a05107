"""Whether the steps of a run tell how fast its program is, or only how busy the machine was.

A run whose steps were undisturbed at times has many steps that take about as long as its fastest ones. That is so on a
core that is shared by turns: in its turn, a program is as fast as ever. It is not so in two cases, in which nothing is
said of the run.

- Steps that need several processors at once hardly ever get them undisturbed, and then the fastest are few.
- Another program may have one of these processors all the time. Then steps are all alike and all too slow, which only
  the operating system's own count shows (`trackside.profiling.processor_use`). A program that hardly computes gets a
  processor whenever it wants one, and is believed if its steps say so clearly.
"""

from dataclasses import dataclass, field

import numpy as np

from trackside.profiling.processor_use import ProcessorUse

NEAR = 0.1
"""A stretch of steps is as fast as the fastest ones if it takes at most this much longer, as a share."""
MIN_SUPPORT = 0.1
"""With a smaller share of such stretches, a run was hardly ever undisturbed."""
MIN_SUPPORT_ON_BUSY_MACHINE = 0.2
"""The same where others kept the processors busy and the run itself used little."""
BETWEEN_RUNS = 0.012
"""What two runs of one program differ by in addition to the noise within them: a standard deviation, as a share."""
BETWEEN_RUNS_ON_BUSY_MACHINE = 0.025
"""The same where others kept the processors busy: even a program that hardly computes is woken up late then."""
MIN_INTERVALS = 40
"""With fewer clean intervals in a run, nothing is said."""
MIN_SECONDS = 0.5
"""With less clean time in a run, nothing is said."""
MIN_OTHER = 0.1
"""Others are of no concern that used a smaller share of the processors."""
MIN_IDLE = 0.5
"""Nor are they if a larger share was idle."""
MIN_PROCESSOR_RATIO = 2.0
"""A run whose steps take this many times as long, and this many times the processor time, is slower however busy the
machine was: waiting for others takes no processor time. Runs of one program differed by 1.6 at most."""
MAX_DISTURBANCE = 10.0
"""The same by their length alone, where processor times are not known."""
MAX_OWN = 0.5
"""A run that used fewer processors than this gets one when it wants one."""


@dataclass(frozen=True)
class StepSeries:
    """The step times of a run in order, as intervals from one log row to the next in which nothing else happened."""

    name: str
    """What to call the run."""
    seconds: np.ndarray
    """Seconds per step in each interval, above zero."""
    num_steps: np.ndarray
    """How many steps each has."""
    num_left_out: int = 0
    """Intervals next to a warm-up, compile, capture, validation, checkpoint, epoch end or memory sample."""
    batch_size: float | None = None
    """Examples per step, in the mean; None if not known."""
    processors: ProcessorUse | None = field(default=None, compare=False)
    """What the processors did meanwhile; None if that was not recorded."""

    @property
    def total_s(self) -> float:
        """How much time the intervals hold."""
        return float(self.seconds @ self.num_steps)

    @property
    def processor_s(self) -> float | None:
        """The processor time of a step; None if not known."""
        if self.processors is None or not len(self.seconds):
            return None
        return self.processors.own * self.total_s / float(self.num_steps.sum())


def support(stretches: np.ndarray, fastest: float, rank: int) -> float:
    """The share of stretches that are about as fast as the fastest ones, apart from these.

    Args:
        stretches: The times of stretches of steps.
        fastest: What stands for the fastest ones.
        rank: How many are faster than that.
    """
    return (int(np.sum(stretches <= (1.0 + NEAR) * fastest)) - rank) / len(stretches)


def is_too_short(side: StepSeries, num_intervals: int) -> str:
    """Why a run is too short to tell; empty if it is long enough."""
    if num_intervals >= MIN_INTERVALS and side.total_s >= MIN_SECONDS:
        return ""
    return (
        f"{side.name} has {num_intervals} clean intervals in {side.total_s:.2g} s, and {MIN_INTERVALS} in "
        f"{MIN_SECONDS:g} s are needed; train longer, or log more often (log_every_n_steps, or every= of run.log)"
    )


def is_disturbed(side: StepSeries, share: float) -> str:
    """Why the fastest steps of a run may not be undisturbed; empty if they seem to be.

    Args:
        side: The run.
        share: Its `support`.
    """
    use = side.processors
    if use is not None and _is_squeezed(use) and (use.own >= MAX_OWN or share < MIN_SUPPORT_ON_BUSY_MACHINE):
        return (
            f"other programs used {use.other:.1f} of the {use.num_processors} processors that {side.name} could use; "
            "run it on a quieter machine, or on one core (taskset -c 0)"
        )
    if share < MIN_SUPPORT:
        return (
            f"the machine was so busy during {side.name} that only {100 * max(share, 0.0):.0f} % of its steps took "
            "about as long as its fastest ones; run it longer, on a quieter machine, on one core (taskset -c 0), or "
            "with log_every_n_steps=1"
        )
    return ""


def between_runs(side: StepSeries) -> float:
    """What a run may differ by from another of its program: a standard deviation, as a share."""
    is_squeezed = side.processors is not None and _is_squeezed(side.processors)
    return BETWEEN_RUNS_ON_BUSY_MACHINE if is_squeezed else BETWEEN_RUNS


def is_beyond_doubt(slower: StepSeries, faster: StepSeries, ratio: float) -> bool:
    """Whether a run is slower than another by more than other programs can be the cause of.

    Args:
        slower: The run that seems slower.
        faster: The other.
        ratio: How many times as long its steps take, at least.
    """
    if slower.processor_s is None or faster.processor_s is None:
        return ratio >= MAX_DISTURBANCE
    return ratio >= MIN_PROCESSOR_RATIO and slower.processor_s >= MIN_PROCESSOR_RATIO * faster.processor_s


def _is_squeezed(use: ProcessorUse) -> bool:
    """Whether a run that may use several processors had to share them."""
    number = use.num_processors
    return number > 1 and use.other >= MIN_OTHER * number and use.idle < MIN_IDLE * number
