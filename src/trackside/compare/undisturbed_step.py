"""How much longer steps take in one run than in another, and how certain that is.

Noise only ever adds time: another process runs, a neighbour shares the core, a page is read. So the typical step of a
busy machine says more of the machine than of the program, and what two runs are compared by is the *undisturbed step*:
the time below which a run has no steps. The fastest steps alone would not do, for two reasons.

- A step that is noticed late makes the next one look short. A step therefore counts as long as the slowest of the
  stretches of one to `MIN_WINDOW` steps that end with it.
- A run may hardly ever have been undisturbed. Then its fast end is not cut off sharply but runs out slowly, and the
  more so the farther the fastest steps are from undisturbed ones. That is what the estimate is corrected by
  (`EDGE_FACTOR`), and what makes the interval wider (`EDGE_DOUBT`).

Blocks that are drawn for the bootstrap are long, so that the interval is wide as well where the fast stretches of a run
are in few places. What two runs of one program differ by even on a quiet machine (where its memory lies, which core it
runs on) comes on top. The constants were chosen on pairs of real trainings (`benchmarks.compare_calibration`).
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from trackside.compare.bootstrap import NUM_RESAMPLES, block_length, resampled
from trackside.compare.difference import interval_of

MIN_WINDOW = 4
"""Steps that a late observation is spread over: more than are in flight."""
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
MAX_EDGE = 0.2
"""With a larger distance, the run was never undisturbed, and nothing is said, unless it is the faster one even so."""
MIN_INTERVALS = 40
"""With fewer clean intervals in a run, nothing is said."""
MIN_SECONDS = 2.0
"""With less clean time in a run, nothing is said."""
NUM_BLOCKS = 16
"""Blocks are so long that this many of them make up the run."""
BETWEEN_RUNS = 0.01
"""What two runs of one program differ by in addition to the noise within them: a standard deviation, as a share."""
MAX_INTERVALS = 1 << 14
"""A longer run is looked at in fewer, longer intervals."""

Verdict = Literal["slower", "faster", "no difference", "cannot tell"]


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

    @property
    def total_s(self) -> float:
        """How much time the intervals hold."""
        return float(self.seconds @ self.num_steps)


@dataclass(frozen=True)
class StepTimeChange:
    """The time of an undisturbed step in both runs."""

    before_s: float | None
    """None where a run has too few clean steps."""
    after_s: float | None
    low: float | None = None
    """The interval's lower end, of `change`."""
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
    per, scales = _unit(before, after)
    size = max(_interval_size(before), _interval_size(after))
    series = [_regrouped(side, size) * scale for side, scale in zip((before, after), scales, strict=True)]
    clean_s = before.total_s, after.total_s
    facts: dict[str, Any] = {
        "per": per,
        "num_intervals": tuple(len(values) for values in series),
        "steps_per_interval": size,
        "clean_s": clean_s,
        "num_left_out": (before.num_left_out, after.num_left_out),
    }
    facts["median_before_s"], facts["median_after_s"] = (float(np.median(one)) if len(one) else None for one in series)
    problem = _too_short(before, after, series)
    if any(len(values) < MIN_WINDOW for values in series):
        return StepTimeChange(None, None, problem=problem, **facts)
    stretches = [slowest_stretches(values, -(-MIN_WINDOW // size)) for values in series]
    first, second = (float(undisturbed(values[None])[0]) for values in stretches)
    low, high = _interval(stretches, np.log(second / first), rng)
    # Noise makes a run seem slower: one that is the faster of the two even so is certainly faster.
    doubtful = [(before, stretches[0])] * (low <= 0) + [(after, stretches[1])] * (high >= 0)
    problem = problem or _too_noisy(doubtful)
    return StepTimeChange(first, second, low, high, problem=problem, **facts)


def slowest_stretches(seconds: np.ndarray, window: int) -> np.ndarray:
    """For each interval the slowest mean of the stretches of one to `window` intervals that end with it."""
    window = min(window, len(seconds))
    sums = np.concatenate([[0.0], np.cumsum(seconds)])
    num_ends = len(seconds) - window + 1
    return np.max([((sums[size:] - sums[:-size]) / size)[-num_ends:] for size in range(1, window + 1)], axis=0)


def undisturbed(stretches: np.ndarray) -> np.ndarray:
    """The time of an undisturbed step, for each row of stretches."""
    fastest, distance = _fast_end(stretches)
    return fastest * np.exp(-EDGE_FACTOR * distance)


def _fast_end(stretches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One of the fastest stretches of each row, and the logarithm of how much slower the one of a larger rank is."""
    num_values = stretches.shape[-1]
    rank = min(max(int(LOW_QUANTILE * num_values), MIN_RANK), num_values // 4)
    ranks = rank, min(EDGE_RANKS * rank, num_values // 2)
    fastest, other = np.moveaxis(np.partition(stretches, ranks, axis=-1)[..., ranks], -1, 0)
    return fastest, np.log(other / fastest)


def _interval(stretches: list[np.ndarray], change: float, rng: np.random.Generator) -> tuple[float, float]:
    """The interval of the relative change: noise in the runs, between them, and how little they were undisturbed."""
    draws = []
    for values in stretches:
        length = max(_block_length(values), len(values) // NUM_BLOCKS)
        draws.append(np.log(resampled(values, undisturbed, rng, length=length)))
    between = rng.normal(0.0, BETWEEN_RUNS * np.sqrt(2.0), NUM_RESAMPLES)
    drawn_low, drawn_high = interval_of(draws[1] - draws[0] + between)
    # Draws without the quiet stretches of a run show how much slower it would have seemed with less luck; by as much it
    # may seem too slow as it is. So the truth lies on the other side of the estimate than the draws.
    low, high = 2.0 * change - drawn_high, 2.0 * change - drawn_low
    # Noise makes steps seem slower, never faster: that of the second run widens the interval downwards, that of the
    # first one upwards.
    first, second = (EDGE_DOUBT * float(_fast_end(values[None])[1][0]) for values in stretches)
    return float(np.expm1(min(low, change) - second)), float(np.expm1(max(high, change) + first))


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


def _too_short(before: StepSeries, after: StepSeries, series: list[np.ndarray]) -> str:
    """Why a run is too short to tell; empty if both are long enough."""
    for side, values in zip((before, after), series, strict=True):
        if len(values) < MIN_INTERVALS or side.total_s < MIN_SECONDS:
            return (
                f"{side.name} has {len(values)} clean intervals in {side.total_s:.1f} s, and {MIN_INTERVALS} in "
                f"{MIN_SECONDS:g} s are needed; train longer, or log more often (log_every_n_steps)"
            )
    return ""


def _too_noisy(sides: list[tuple[StepSeries, np.ndarray]]) -> str:
    """Why a run is too noisy to tell, of runs and their stretches; empty if none is."""
    for side, values in sides:
        edge = float(_fast_end(values[None])[1][0])
        if edge > MAX_EDGE:
            return (
                f"the machine was so busy during {side.name} that even its fastest steps differ by {100 * edge:.0f} %; "
                "run it on a quieter machine, on one core (taskset -c 0), or with log_every_n_steps=1"
            )
    return ""
