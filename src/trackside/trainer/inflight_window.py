"""How many calls the loop may have under way, and how many it hears of at once.

To be woken up takes as long as a step of a hundred microseconds, and rows that are written together take as long as
several; the device must not wait for that. So where steps are short, more of them may be under way. What is queued
takes a few milliseconds and some megabytes at the most.

The loop waits for one call at a time. To wait for several at once takes fewer wake-ups, but then as many calls are made
one after the other, and these take the cores that the step computes on: by the clock an MLP of 0.1 ms took 1.07 of the
time without a limit, where it takes 1.03 now, and a CNN of 0.3 ms 1.08 to 1.2 instead of 1.02.
"""

from typing import Literal

AUTO_INFLIGHT = 2
"""How many calls are under way where nobody says how many, and steps are not short."""
MAX_INFLIGHT = 32
WINDOW_S = 8e-3
"""How long the calls under way shall take together, where there are more."""
WINDOW_BYTES = 64 << 20
"""How large their batches may be together."""
COPIED_BYTES = 64 << 10
"""How large a batch may be to be copied at every step, which a loader that may reuse its memory calls for."""
_MIN_CALLS = 16
"""Over how many calls their pace is taken. That of one alone is chance."""


class InflightWindow:
    """How many calls may be under way.

    Args:
        wanted: What the user wants.
        can_widen: Whether more than `AUTO_INFLIGHT` may be under way if steps are short. Several CPU devices of one
            process block each other then, and whoever acts on single steps would hear of them too late.
        batch_bytes: The size of a batch.
        is_copied: Whether batches have to be copied if more are under way.
        steps_per_call: How many steps a call makes at most, each with a batch of its own.

    Attributes:
        limit: How many calls may be under way now.
        num_retired: How many of those that have completed are heard of at once.
    """

    def __init__(
        self,
        wanted: int | Literal["auto"],
        can_widen: bool,
        batch_bytes: int,
        is_copied: bool,
        steps_per_call: int = 1,
    ):
        self.limit = self._least = smallest_window(wanted)
        self.num_retired = 1
        self._most = self.limit
        if wanted == "auto" and can_widen and not (is_copied and batch_bytes > COPIED_BYTES):
            call_bytes = batch_bytes * steps_per_call
            self._most = max(self.limit, min(MAX_INFLIGHT, WINDOW_BYTES // max(call_bytes, 1)))
        self._steps_per_call = steps_per_call
        self._since: tuple[int, float] | None = None

    @property
    def most(self) -> int:
        """How many calls may ever be under way."""
        return self._most

    @property
    def is_wide(self) -> bool:
        """Whether more calls are under way than where steps are not short."""
        return self.limit > self._least

    def break_off(self) -> None:
        """The time since the last wait is not that of steps alone."""
        self._since = None

    def adapt(self, step: int, now_s: float) -> bool:
        """Choose how many calls may be under way, by the pace of the last steps.

        Args:
            step: The last step that was called.
            now_s: What the clock shows, after the loop has waited.

        Returns:
            Whether the limit is another one now.
        """
        if self._most == self._least:
            return False
        if self._since is None:
            self._since = step, now_s
            return False
        since_step, since_s = self._since
        num_calls = (step - since_step) / self._steps_per_call
        if num_calls < _MIN_CALLS:
            return False
        self._since = step, now_s
        call_s = max(now_s - since_s, 1e-9) / num_calls
        limit = max(self._least, min(self._most, int(WINDOW_S / call_s)))
        if self.limit // 2 < limit < 2 * self.limit:  # not for each small change of pace
            return False
        self.limit, self.num_retired = limit, max(1, limit // 2)
        return True


def smallest_window(wanted: int | Literal["auto"]) -> int:
    """How many calls may be under way at any rate."""
    return AUTO_INFLIGHT if wanted == "auto" else wanted
