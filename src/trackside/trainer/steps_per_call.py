"""How many steps one call makes.

`steps_per_call="auto"` first decides whether to fuse steps, by what is known before the first one: the step's
operations, the size of the state and of a batch, the devices, who listens. Time plays no part in it, so that the same
training runs in the same program each time. How many steps a call then makes follows the clock; the results do not
depend on it.
"""

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

AUTO_CAPACITY = 128
"""How many steps a call makes at most where nobody says how many."""
AUTO_SMALL_CAPACITY = 32
"""The same where each place in a call costs time even if it is not used, as where each batch is an argument."""
AUTO_OUTPUT_BYTES = 128 << 10
"""How large all that a call with more places gives back may be: every call fills it."""
AUTO_CALL_S = 8e-3
"""How long such a call shall take: hooks, signals and progress bars wait for its end."""
AUTO_STACK_BYTES = 16 << 20
"""How large the stacked batches of such a call may be."""
AUTO_MAX_BATCH_BYTES = 512 << 10
"""Copying a larger batch takes as long as the call that is saved."""
AUTO_MAX_STEP_S = 2e-3
"""How long a step may take, by estimate, to be worth it."""
_FLOPS_PER_S = 100e9
_OTHER_FLOPS_PER_S = 20e9
_BYTES_PER_S = 50e9
"""What two cores do, roughly: steps of 0.3 to 1.3 ms were estimated at 0.7 to 1.6 ms. Only for the estimate."""
_NUM_RECENT = 5

Program = Literal["plain", "fused"]


@dataclass(frozen=True)
class StepCost:
    """What a step does, as far as its program tells."""

    flops: float
    """Floating-point operations of matrix products."""
    other_flops: float
    """Other ones."""
    num_bytes: int
    """The size of the state."""
    keeps_form: bool
    """Whether the state has the same form after the step as before."""

    @property
    def seconds(self) -> float:
        """How long it takes, very roughly."""
        return self.flops / _FLOPS_PER_S + self.other_flops / _OTHER_FLOPS_PER_S + 2 * self.num_bytes / _BYTES_PER_S


@dataclass(frozen=True)
class StepsPerCall:
    """How many steps a call makes."""

    program: Program = "plain"
    """Whether steps run one by one, or in a program that makes several."""
    capacity: int = 1
    """How many steps a call makes at most."""
    is_timed: bool = False
    """Whether it makes as many as take some milliseconds, instead of as many as it can."""
    makes_one: bool = False
    """Whether it makes one at a time all the same, since somebody acts on single steps."""

    def capacity_for(self, num_bytes: int, is_listed: bool = False) -> int:
        """How many steps a call makes at most on batches of this size, each of them an argument if they are listed."""
        if not self.is_timed:
            return self.capacity
        if num_bytes > AUTO_MAX_BATCH_BYTES:
            return 1
        capacity = min(self.capacity, AUTO_SMALL_CAPACITY) if is_listed else self.capacity
        return min(capacity, AUTO_STACK_BYTES // max(num_bytes, 1))


PLAIN = StepsPerCall()


def choose_steps_per_call(
    wanted: int | Literal["auto"],
    saved: Program | None,
    cost: StepCost | None,
    batch_bytes: int,
    num_devices: int,
    is_cpu: bool,
    acts_on_steps: bool,
    output_bytes: int,
) -> StepsPerCall:
    """Choose how many steps a call makes.

    Args:
        wanted: What the user wants.
        saved: In which program the training ran that is resumed; None for a new one.
        cost: What a step does; None where nothing is compiled.
        batch_bytes: The size of a batch.
        num_devices: How many devices take part.
        is_cpu: Whether these are CPUs.
        acts_on_steps: Whether somebody may act on single steps as they complete.
        output_bytes: The size of what a call gives back for each of its steps.
    """
    if cost is None or wanted == 1:
        return PLAIN
    if wanted != "auto":
        return StepsPerCall("fused", wanted)
    is_safe = is_cpu and num_devices == 1 and cost.keeps_form
    is_short = cost.seconds <= AUTO_MAX_STEP_S and batch_bytes <= AUTO_MAX_BATCH_BYTES
    is_fused = is_short and not acts_on_steps if saved is None else saved == "fused"
    if not is_safe or not is_fused:
        return PLAIN
    num_cheap = AUTO_OUTPUT_BYTES // max(output_bytes, 1)
    capacity = max(AUTO_SMALL_CAPACITY, min(AUTO_CAPACITY, num_cheap))
    return StepsPerCall("fused", capacity, is_timed=True, makes_one=acts_on_steps)


class Pace:
    """How many steps the next call is to make.

    Args:
        chosen: What was chosen.
        now: What the clock shows.
    """

    def __init__(self, chosen: StepsPerCall, now: Callable[[], float]):
        self._chosen = chosen
        self._now = now
        self._is_timed = chosen.is_timed and not chosen.makes_one
        self._length = 1 if chosen.is_timed else chosen.capacity
        self._last_s: float | None = None
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)

    def break_off(self) -> None:
        """The time to the next call is not that of a step."""
        self._last_s = None

    def length(self, num_steps: int) -> int:
        """How many steps the next call is to make.

        Args:
            num_steps: How many the last one made.
        """
        if not self._is_timed:
            return self._length
        last_s, self._last_s = self._last_s, self._now()
        if last_s is not None:
            self._recent.append((self._last_s - last_s) / num_steps)
            if len(self._recent) >= 3:  # the first has compiled
                step_s = statistics.median(self._recent)
                self._length = max(1, min(self._chosen.capacity, int(AUTO_CALL_S / max(step_s, 1e-9))))
        return self._length
