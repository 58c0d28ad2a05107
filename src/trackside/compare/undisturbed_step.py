"""How much longer steps take in one run than in another, and how certain that is.

Noise only ever adds time: another process runs, a neighbor shares the core, a page is read. So the typical step of a
busy machine says more of the machine than of the program, and what two runs are compared by is the *undisturbed step*:
the time below which a run has no steps. The fastest steps alone would not do, for two reasons.

- A step that is noticed late makes the next one look short. A step therefore counts as long as the slowest of the
  stretches of one to `MIN_WINDOW` steps that end with it.
- A run may seldom have been undisturbed. Then its fast end is not cut off sharply but runs out slowly, and the more so
  the farther the fastest steps are from undisturbed ones. That is what the estimate is corrected by (`EDGE_FACTOR`),
  and what makes the interval wider (`EDGE_DOUBT`). Of a run that was hardly ever undisturbed, nothing is said
  (`trackside.compare.disturbance`).

Blocks that are drawn for the bootstrap are long, so that the interval is wide as well where the fast stretches of a run
are in few places. What two runs of one program differ by even on a quiet machine (where its memory is, which core it
runs on) comes on top. The constants were chosen on pairs of real trainings (`benchmarks.compare_calibration`).
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from trackside.compare.bootstrap import NUM_RESAMPLES, block_length, resampled
from trackside.compare.difference import interval_of
from trackside.compare.disturbance import (
    MIN_SUPPORT,
    StepSeries,
    between_runs,
    is_beyond_doubt,
    is_disturbed,
    is_too_short,
    support,
)

MIN_WINDOW = 8
"""Steps that a late observation is spread over: more than are in flight, and more where the loop itself had to wait."""
LOW_QUANTILE = 0.002
"""Which of the stretches is taken for one of the fastest."""
MIN_RANK = 5
"""At least this many stretches are faster than that, however few there are."""
EDGE_RANKS = 10
"""The stretch at this multiple of that rank shows how sharp the fast end is."""
EDGE_FACTOR = 0.4
"""How far beyond the fastest stretches the undisturbed step is, as a share of the distance between these two."""
EDGE_DOUBT = 0.3
"""How far off that may be: a share of the same distance."""
NUM_BLOCKS = 16
"""Blocks are so long that this many of them make up the run."""
MAX_DOUBT = 0.1
"""There is no difference if it is certain that there is no larger one than this; else nothing is said."""
MAX_INTERVALS = 1 << 14
"""A longer run is looked at in fewer, longer intervals."""

Verdict = Literal["slower", "faster", "no difference", "cannot tell"]


@dataclass(frozen=True)
class StepTimeChange:
    """The time of an undisturbed step in both runs."""

    before_s: float | None
    """None where a run has too few clean steps."""
    after_s: float | None
    low: float | None = None
    """The interval's lower end, of `change`; None where a run is too short or too disturbed for one."""
    high: float | None = None
    """The interval's upper end."""
    median_before_s: float | None = None
    """The median of all clean steps, noise included."""
    median_after_s: float | None = None
    per: Literal["step", "example"] = "step"
    """What the figures are for: examples, where the runs have batches of different sizes."""
    num_intervals: tuple[int, int] = (0, 0)
    """Clean intervals in each run."""
    steps_per_interval: int = 1
    clean_s: tuple[float, float] = (0.0, 0.0)
    """How much time they hold."""
    num_left_out: tuple[int, int] = (0, 0)
    """Intervals left out: warm-up, compiles, captures, validation, checkpoints, epoch ends, memory samples."""
    problem: str = ""
    """Why there is no verdict, if so."""

    @property
    def change(self) -> float | None:
        """How much longer a step takes in the second run, as a share of the first."""
        if self.before_s is None or self.after_s is None:
            return None
        return self.after_s / self.before_s - 1.0

    @property
    def verdict(self) -> Verdict:
        """What the interval says."""
        if self.problem or self.low is None or self.high is None:
            return "cannot tell"
        return "slower" if self.low > 0 else "faster" if self.high < 0 else "no difference"

    def is_beyond(self, max_slowdown: float) -> bool:
        """Whether the second run is significantly slower, by more than a share."""
        return self.verdict == "slower" and self.change is not None and self.change > max_slowdown

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {**asdict(self), "change": self.change, "verdict": self.verdict}


def compare_step_times(before: StepSeries, after: StepSeries, rng: np.random.Generator) -> StepTimeChange:
    """Compare the undisturbed steps of two runs."""
    sides = before, after
    per, scales = _unit(before, after)
    size = max(_interval_size(before), _interval_size(after))
    series = [_regrouped(side, size) * scale for side, scale in zip(sides, scales, strict=True)]
    facts: dict[str, Any] = {
        "per": per,
        "num_intervals": tuple(len(values) for values in series),
        "steps_per_interval": size,
        "clean_s": (before.total_s, after.total_s),
        "num_left_out": (before.num_left_out, after.num_left_out),
    }
    facts["median_before_s"], facts["median_after_s"] = (float(np.median(one)) if len(one) else None for one in series)
    short = [is_too_short(side, len(values)) for side, values in zip(sides, series, strict=True)]
    if any(len(values) < MIN_WINDOW for values in series):
        return StepTimeChange(None, None, problem=max(short, key=bool), **facts)
    speeds = [_Speed.of(values, -(-MIN_WINDOW // size)) for values in series]
    first, second = (speed.undisturbed_s for speed in speeds)
    low, high = _interval(speeds, float(np.hypot(between_runs(before), between_runs(after))), rng)
    disturbed = [is_disturbed(side, speed.support) for side, speed in zip(sides, speeds, strict=True)]
    # Noise makes a run seem slower: one that is the faster of the two even so is certainly faster.
    is_clear = is_beyond_doubt(after, before, 1.0 + low) or is_beyond_doubt(before, after, 1.0 / (1.0 + high))
    hidden = "" if is_clear or low > 0 else disturbed[0], "" if is_clear or high < 0 else disturbed[1]
    problem = max(*short, *hidden, key=bool)
    if problem:
        return StepTimeChange(first, second, problem=problem, **facts)
    if low <= 0 <= high and max(-low, high) > MAX_DOUBT:
        problem = (
            f"the change may be anything from {100 * low:+.0f} to {100 * high:+.0f} %; train longer, on a quieter "
            "machine, or on one core (taskset -c 0)"
        )
    return StepTimeChange(first, second, low, high, problem=problem, **facts)


@dataclass(frozen=True)
class _Speed:
    """What the step times of a run come to."""

    stretches: np.ndarray
    edge_factor: float
    """`EDGE_FACTOR`, or 0 for a run whose fast end is too blurred to look beyond it."""
    edge: float
    """How blurred that is, as a logarithm."""
    support: float
    """The share of stretches that are about as fast as the fastest ones."""

    @classmethod
    def of(cls, seconds: np.ndarray, window: int) -> "_Speed":
        stretches = slowest_stretches(seconds, window)
        fastest, edge = (float(value[0]) for value in _fast_end(stretches[None]))
        share = support(stretches, fastest, _rank(len(stretches)))
        return cls(stretches, EDGE_FACTOR if share >= MIN_SUPPORT else 0.0, edge, share)

    @property
    def undisturbed_s(self) -> float:
        return float(self.undisturbed(self.stretches[None])[0])

    def undisturbed(self, stretches: np.ndarray) -> np.ndarray:
        """The time of an undisturbed step, for each row of stretches."""
        fastest, edge = _fast_end(stretches)
        return fastest * np.exp(-self.edge_factor * edge)

    def draws(self, rng: np.random.Generator) -> np.ndarray:
        """Logarithms of what it might have been, had other stretches of the run been made."""
        length = max(_block_length(self.stretches), len(self.stretches) // NUM_BLOCKS)
        return np.log(resampled(self.stretches, self.undisturbed, rng, length=length))


def slowest_stretches(seconds: np.ndarray, window: int) -> np.ndarray:
    """For each interval the slowest mean of the stretches of one to `window` intervals that end with it."""
    window = min(window, len(seconds))
    sums = np.concatenate([[0.0], np.cumsum(seconds)])
    num_ends = len(seconds) - window + 1
    return np.max([((sums[size:] - sums[:-size]) / size)[-num_ends:] for size in range(1, window + 1)], axis=0)


def _rank(num_stretches: int) -> int:
    """How many stretches are faster than the one that stands for the fastest."""
    return min(max(int(LOW_QUANTILE * num_stretches), MIN_RANK), num_stretches // 4)


def _fast_end(stretches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One of the fastest stretches of each row, and the logarithm of how much slower the one of a larger rank is."""
    num_values = stretches.shape[-1]
    rank = _rank(num_values)
    ranks = rank, min(EDGE_RANKS * rank, num_values // 2)
    fastest, other = np.moveaxis(np.partition(stretches, ranks, axis=-1)[..., ranks], -1, 0)
    return fastest, np.log(other / fastest)


def _interval(speeds: list[_Speed], between_runs: float, rng: np.random.Generator) -> tuple[float, float]:
    """The interval of the relative change: noise in the runs, between them, and how little they were undisturbed."""
    first, second = speeds
    change = float(np.log(second.undisturbed_s / first.undisturbed_s))
    draws = [speed.draws(rng) for speed in speeds]
    between = rng.normal(0.0, between_runs, NUM_RESAMPLES)
    drawn_low, drawn_high = interval_of(draws[1] - draws[0] + between)
    # Draws without the quiet stretches of a run show how much slower it would have seemed with less luck; by as much it
    # may seem too slow as it is. So the truth is on the other side of the estimate than the draws.
    low, high = min(2.0 * change - drawn_high, change), max(2.0 * change - drawn_low, change)
    # Noise makes steps seem slower, never faster: that of the second run widens the interval downwards, that of the
    # first one upwards.
    return float(np.expm1(low - EDGE_DOUBT * second.edge)), float(np.expm1(high + EDGE_DOUBT * first.edge))


def _block_length(values: np.ndarray) -> int:
    """By the autocorrelation, in which a few very slow stretches are not to drown the rest."""
    return block_length(np.minimum(values, 3.0 * np.median(values)))


def _interval_size(side: StepSeries) -> int:
    """The steps of a side's usual interval, or more where there are too many to look at."""
    if not len(side.seconds):
        return 1
    usual = int(np.median(side.num_steps))
    return max(usual, -(-int(side.num_steps.sum()) // MAX_INTERVALS))


def _regrouped(side: StepSeries, size: int) -> np.ndarray:
    """Seconds per step of intervals of about `size` steps, so that both runs are looked at through the same lens."""
    if not len(side.seconds):
        return side.seconds
    ends = np.cumsum(side.num_steps)
    group = (ends - 1) // size
    totals = np.bincount(group, weights=side.seconds * side.num_steps)
    num_steps = np.bincount(group, weights=side.num_steps)
    is_full = num_steps >= 0.5 * size
    return totals[is_full] / num_steps[is_full]


def _unit(before: StepSeries, after: StepSeries) -> tuple[Literal["step", "example"], tuple[float, float]]:
    """Steps of different sizes are compared by the example."""
    first, second = before.batch_size, after.batch_size
    if first and second and abs(second / first - 1.0) > 0.01:
        return "example", (1.0 / first, 1.0 / second)
    return "step", (1.0, 1.0)
