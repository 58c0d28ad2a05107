"""How much memory a program takes anew from the system while it trains.

What a step frees may go back to the system, which clears it page by page when the next step asks for it again. No
profiler of Python shows that: it is the system's time within the step.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

if sys.platform != "win32":
    import resource


@dataclass(frozen=True)
class TakenMemory:
    """What was taken over a number of steps."""

    num_bytes: float
    """How much, again and again the same where it was given back meanwhile. Of memory in huge pages, a small part."""
    num_steps: int
    system_s: float
    """Processor time that the system took for this process, in which it also does other things for it."""
    wall_s: float
    """How long that was."""

    @property
    def bytes_per_step(self) -> float:
        """How much a step takes, in the mean."""
        return self.num_bytes / self.num_steps if self.num_steps else 0.0

    @property
    def bytes_per_s(self) -> float:
        """How much is taken in a second."""
        return self.num_bytes / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def system_share(self) -> float:
        """How long the system was busy for this process, next to the clock; at most 1, also on several processors."""
        return min(self.system_s / self.wall_s, 1.0) if self.wall_s > 0 else 0.0


class TakenMemoryMeter:
    """Measures what is taken from the moment it is made.

    Args:
        num_steps: How many steps were made before.
        now: What the clock shows.
    """

    def __init__(self, num_steps: int, now: Callable[[], float]):
        self._now = now
        self._began = num_steps, bytes_taken(), os.times().system, now()

    def taken(self, num_steps: int) -> TakenMemory:
        """What was taken since then.

        Args:
            num_steps: How many steps were made so far.
        """
        steps_before, bytes_before, system_before_s, began_s = self._began
        return TakenMemory(
            bytes_taken() - bytes_before,
            num_steps - steps_before,
            os.times().system - system_before_s,
            self._now() - began_s,
        )


def bytes_taken() -> int:
    """How much memory this process has got from the system so far, page by page; 0 where nobody counts it."""
    if sys.platform == "win32":
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize()
