"""Timing several ways of doing the same work, in turn, so that noise of the machine hits all of them alike."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds per step of one contestant, one figure per round."""

    name: str
    rounds_s: tuple[float, ...]

    @property
    def best_us(self) -> float:
        return min(self.rounds_s) * 1e6

    @property
    def median_us(self) -> float:
        return statistics.median(self.rounds_s) * 1e6

    def ratio_to(self, other: "Timing") -> float:
        """Median over the rounds of the ratio within a round."""
        return statistics.median(a / b for a, b in zip(self.rounds_s, other.rounds_s, strict=True))

    def overhead_us(self, other: "Timing") -> float:
        """Median over the rounds of the difference within a round, in us."""
        return statistics.median(a - b for a, b in zip(self.rounds_s, other.rounds_s, strict=True)) * 1e6


def race(
    contestants: dict[str, Callable[[], None]],
    num_steps: int,
    num_rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Run each contestant once per round, in alternating order.

    Args:
        contestants: By name, a function that makes `num_steps` steps and returns when the device is done.
        num_steps: Steps per call.
        num_rounds: Rounds that count; one more goes before them, for warm-up.
        clock: What is measured: the time that passes, or that the thread computes.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for round_index in range(num_rounds + 1):
        names = list(contestants) if round_index % 2 else list(reversed(contestants))
        for name in names:
            gc.collect()
            gc.disable()
            start = clock()
            contestants[name]()
            elapsed = clock() - start
            gc.enable()
            if round_index:
                seconds[name].append(elapsed / num_steps)
    return {name: Timing(name, tuple(values)) for name, values in seconds.items()}
