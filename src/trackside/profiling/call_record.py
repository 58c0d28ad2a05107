"""What is known of one call of the compiled step: for the loop, the ledger, the device's clock and the callbacks."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from trackside.profiling.ledger_totals import OTHER

STEP_MARKER = "train"
"""What steps are called in a trace."""
Span = tuple[str, float]
"""A part of the ledger, and until when the host was in it."""


class CallRecord(msgspec.Struct, gc=False, eq=False):  # made at every step: a third of what a dataclass takes
    """One call of the compiled step. Times are readings of the loop's clock."""

    first_step: int
    """Index of its first step."""
    num_steps: int
    """How many steps it makes."""
    num_samples: int
    """How many examples they have."""
    epoch: int
    started_s: float
    """When the loop began to get its batch."""
    batch_s: float
    """When the loop had it."""
    placed_s: float
    """When it was on its way to the device."""
    ready_s: float
    """When there was room among the calls in flight."""
    dispatched_s: float
    """When the call returned, which is before the device is done."""
    was_idle: bool
    """Whether the device had nothing to do just before the call."""
    was_blocked: bool
    """Whether the loop had to wait for room."""
    report: Any
    """The metrics after the call. Ready when the call has completed."""
    batch: Any
    """The batch, which must stay unchanged until then."""
    awaited_s: float = math.inf
    """When it completed, if the loop waited for that."""
    seen_s: float = math.inf
    """When it completed, if somebody else saw that."""
    found_s: float = math.inf
    """When it was found complete."""
    began_s: float = math.nan
    """When the device began with it, or would have if it had nothing else to do, as far as that is known."""
    completed_s: float = math.nan
    """When the device was done with it, as far as that is known; not a number before the loop retires it."""
    uncertainty_s: float = 0.0
    """How far from the truth that may be."""
    is_disturbed: bool = False
    """Whether it took longer than it should, by a compilation or a capture."""
    is_logged: bool = False
    """Whether a log row is due after it."""
    before: Sequence[Span] = ()
    """What the host did since the call before it, where that is known in more detail than the times above tell."""

    host_cpu_s: float = math.nan
    """What its thread computed from the call's return to the next thing that is known of it; often not known."""
    host_late_s: float = 0.0
    """How long the thread had no core meanwhile, though it was ready to run."""
    computed_after: dict[str, float] | None = None
    """What the process computed between this call and the next, by part, if it is the device; often not known."""

    @property
    def last_step(self) -> int:
        """Index of its last step."""
        return self.first_step + self.num_steps - 1

    @property
    def own_code_until_s(self) -> float | None:
        """Until when the user's code ran after the call before it; None if something else came first."""
        return self.before[0][1] if self.before and self.before[0][0] == OTHER else None


class OwnCall(CallRecord, gc=False, eq=False):
    """A call of a loop that is not ours. Where nothing comes before it but a batch, `before` is empty."""

    @property
    def own_code_until_s(self) -> float | None:
        """Until when the user's code ran after the call before it; None if something else came first."""
        return super().own_code_until_s if self.before else self.started_s
