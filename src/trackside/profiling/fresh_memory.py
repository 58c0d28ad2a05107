"""How much fresh memory a program gets from the operating system while it trains.

What a step frees may go back to the system, which has to clear it page by page when the next step asks for memory. No
profiler of Python shows that: it is the system's time within the step.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

if sys.platform != "win32":
    import resource


@dataclass(frozen=True)
class FreshMemory:
    """The fresh memory of a number of steps."""

    num_bytes: float
    """How much it was. Memory that is given back and got again counts each time; of huge pages, only a small part."""
    num_steps: int
    system_s: float
    """Processor time that the system spent on this process, also on other things than memory."""
    wall_s: float
    """How long that was."""

    @property
    def bytes_per_step(self) -> float:
        """How much a step gets, on average."""
        return self.num_bytes / self.num_steps if self.num_steps else 0.0

    @property
    def bytes_per_s(self) -> float:
        """How much the program gets in a second."""
        return self.num_bytes / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def system_share(self) -> float:
        """The system's time next to the clock; at most 1, also on several processors."""
        return min(self.system_s / self.wall_s, 1.0) if self.wall_s > 0 else 0.0


class FreshMemoryMeter:
    """Measures from the moment it is made.

    Args:
        num_steps: How many steps were made before.
        now: What the clock shows.
    """

    def __init__(self, num_steps: int, now: Callable[[], float]):
        self._now = now
        self._began = num_steps, fresh_bytes(), os.times().system, now()

    def since_then(self, num_steps: int) -> FreshMemory:
        """What the program got since then.

        Args:
            num_steps: How many steps were made so far.
        """
        steps_before, bytes_before, system_before_s, began_s = self._began
        return FreshMemory(
            fresh_bytes() - bytes_before,
            num_steps - steps_before,
            os.times().system - system_before_s,
            self._now() - began_s,
        )


def fresh_bytes() -> int:
    """How much fresh memory this process has got so far; 0 where nobody counts it."""
    if sys.platform == "win32":
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize()
