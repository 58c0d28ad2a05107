"""What is known of one call of the compiled step."""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class CallRecord:
    """One call of the compiled step: what the loop, the ledger and the callbacks know of it."""

    first_step: int
    """Index of its first step."""
    num_steps: int
    """How many steps it made."""
    epoch: int
    ready_s: float
    """When there was room among the calls in flight."""
    dispatched_s: float
    """When the call returned, which is before the device is done."""
    report: Any
    """The metrics after the call. Ready when the call has completed."""
    batch: Any
    """The batch, which must stay unchanged until then."""
    completed_s: float = math.nan
    """When the loop learned that the device was done."""
    is_disturbed: bool = False
    """Whether it took longer than it should, by a compilation or a capture."""
    is_logged: bool = False
    """Whether a log row is due after it."""

    @property
    def last_step(self) -> int:
        """Index of its last step."""
        return self.first_step + self.num_steps - 1
