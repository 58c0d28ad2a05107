"""When something is due. Every plan answers `next_boundary(step)`, so that nothing is decided too late.

The loop asks for the next boundary, runs up to it without checking anything else, and asks again. If something has to
happen before a step, such as the start of a capture, it is planned as a boundary before that step.
"""

import math
from collections.abc import Iterable
from typing import Protocol

from trackside.clock import Clock
from trackside.errors import ConfigError

NEVER = math.inf
NUM_FREE = 100
"""What is to take a small share of the time may come as often before that is looked at: a short training has all."""


def check_interval(name: str, interval: float, unit: str = "") -> None:
    """Refuse an interval that is neither positive nor -1, which stands for never.

    Args:
        name: The name of the field that the user set, for the error.
        interval: What the user gave.
        unit: What it counts, if the name does not tell, such as " of steps".

    Raises:
        ConfigError: It names both, and what to write.
    """
    if not (interval > 0 or interval == -1):
        raise ConfigError(f"{name}: expected a positive number{unit}, or -1 for never; got {interval}")


class HasBoundaries(Protocol):
    """Knows the steps after which the loop has to pause and check."""

    def next_boundary(self, step: int, /) -> float:
        """The first boundary after `step`, or `NEVER`."""
        ...


class Plan(HasBoundaries, Protocol):
    """Knows it from the step alone."""

    def is_due(self, step: int) -> bool:
        """Whether `step` is one of the boundaries."""
        ...


class Every:
    """Due every N steps.

    Args:
        num_steps: The interval in steps: positive, or -1 for never.
        name: The name of the field that the user set, for the error.
    """

    def __init__(self, num_steps: int, name: str = "num_steps"):
        check_interval(name, num_steps, " of steps")
        self.num_steps = num_steps

    def next_boundary(self, step: int) -> float:
        """The next multiple of the interval."""
        return NEVER if self.num_steps < 0 else (step // self.num_steps + 1) * self.num_steps

    def between(self, first: int, last: int) -> range:
        """The multiples of the interval from one step to another, both included."""
        return (
            range(-(-first // self.num_steps) * self.num_steps, last + 1, self.num_steps)
            if self.num_steps > 0
            else range(0)
        )

    def is_due(self, step: int) -> bool:
        """Whether the step is a multiple of the interval."""
        return self.num_steps > 0 and step > 0 and step % self.num_steps == 0


class AffordableSteps:
    """Due every N steps, but after the first hundred times not before what it took is a small share of the time.

    Args:
        num_steps: The interval, as for `Every`.
        max_share: The share; 1 for every N steps at any price.
        clock: Where times come from.
    """

    def __init__(self, num_steps: int, max_share: float, clock: Clock):
        self.max_share = max_share
        self._every = Every(num_steps)
        self._now = clock.now
        self._earlier_s = 0.0
        """How long trainings before this one took."""
        self._began_s: float | None = None
        self._num_free = NUM_FREE
        self._spent_s = 0.0
        self._last = 0, clock.now()
        self._not_before = 0

    def start(self, step: int) -> None:
        """A training begins, from a step on."""
        self._began_s, self._not_before = self._now(), 0
        self._last = step, self._began_s

    def stop(self) -> None:
        """It is over: until the next one begins, no time passes."""
        if self._began_s is not None:
            self._earlier_s += self._now() - self._began_s
            self._began_s = None

    def next_boundary(self, step: int) -> float:
        """The next multiple of the interval that can be afforded."""
        return self._every.next_boundary(max(step, self._not_before - 1))

    def is_due(self, step: int) -> bool:
        """Whether the step is one of them."""
        return step >= self._not_before and self._every.is_due(step)

    def spend(self, step: int, seconds: float) -> None:
        """It was due at a step, and took some time."""
        (last_step, last_s), now_s = self._last, self._now()
        self._last = step, now_s
        if self._num_free:
            self._num_free -= 1
            return
        self._spent_s += seconds
        passed_s = self._earlier_s + (0.0 if self._began_s is None else now_s - self._began_s)
        wait_s = self._spent_s / self.max_share - passed_s
        step_s = (now_s - last_s - seconds) / max(step - last_step, 1)
        if wait_s > 0 and step_s > 0 and self.max_share < 1:
            self._not_before = step + int(wait_s / step_s)


class At:
    """Due at the given steps only.

    Args:
        steps: The steps, in any order.
    """

    def __init__(self, *steps: float):
        self.steps = sorted(steps)

    def next_boundary(self, step: int) -> float:
        """The next of the steps."""
        return next((at for at in self.steps if at > step), NEVER)

    def is_due(self, step: int) -> bool:
        """Whether the step is one of them."""
        return step in self.steps


def next_boundary(plans: Iterable[HasBoundaries], step: int) -> float:
    """The first step after `step` at which any plan is due."""
    return min((plan.next_boundary(step) for plan in plans), default=NEVER)
