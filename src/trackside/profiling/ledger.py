"""The ledger: where the wall time of a thread goes, all of it.

Exactly one part is running at any moment, so the parts sum up to the whole. What happens inside another part counts for
itself alone: the time of a checkpoint that a callback saves is that of checkpointing, not of the callback.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trackside.clock import SYSTEM_CLOCK, Clock

DATA_WAIT = "data_wait"
HOST_TO_DEVICE = "host_to_device"
DISPATCH = "dispatch"
DEVICE_WAIT = "device_wait"
COMPILE = "compile"
LOGGING = "logging"
VALIDATION = "validation"
CHECKPOINTING = "checkpointing"
OTHER = "other"
PARTS = (DATA_WAIT, HOST_TO_DEVICE, DISPATCH, DEVICE_WAIT, COMPILE, LOGGING, VALIDATION, CHECKPOINTING, OTHER)
STEP_PARTS = (HOST_TO_DEVICE, DISPATCH, DEVICE_WAIT)
"""The parts in which a training step is under way: what is left of a run's time when all else is taken away."""
CALLBACK = "callback/"
"""What the parts of callbacks begin with; their names follow."""


@dataclass(frozen=True)
class LedgerTotals:
    """What a ledger shows at one moment."""

    wall_s: float
    parts: dict[str, float]
    """Seconds by part; callbacks as `callback/<name>`."""
    num_steps: int = 0
    num_samples: int = 0
    num_tokens: int = 0
    gc_s: float = 0.0
    """What Python's garbage collection took, inside whichever parts."""
    device_busy_s: float | None = None
    device_idle_s: float | None = None
    """How long the device computed and idled between the first and the last step; None where it was not observed."""
    idle_by_reason: dict[str, float] = field(default_factory=dict)
    """What the host did meanwhile: the part's name."""

    def since(self, earlier: "LedgerTotals") -> "LedgerTotals":
        """What has come since an earlier moment."""
        return LedgerTotals(
            self.wall_s - earlier.wall_s,
            _less(self.parts, earlier.parts),
            self.num_steps - earlier.num_steps,
            self.num_samples - earlier.num_samples,
            self.num_tokens - earlier.num_tokens,
            self.gc_s - earlier.gc_s,
            _minus(self.device_busy_s, earlier.device_busy_s),
            _minus(self.device_idle_s, earlier.device_idle_s),
            _less(self.idle_by_reason, earlier.idle_by_reason),
        )

    def share(self, part: str) -> float:
        """A part's share of the wall."""
        return self.parts.get(part, 0.0) / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def in_steps_s(self) -> float:
        """The time in which training steps were under way."""
        return sum(self.parts.get(part, 0.0) for part in STEP_PARTS)

    @property
    def idle_share(self) -> float | None:
        """The device's idle share of the time in which it was observed."""
        if self.device_busy_s is None or self.device_idle_s is None:
            return None
        observed_s = self.device_busy_s + self.device_idle_s
        return self.device_idle_s / observed_s if observed_s > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "wall_s": self.wall_s,
            "parts": dict(self.parts),
            "num_steps": self.num_steps,
            "num_samples": self.num_samples,
            "num_tokens": self.num_tokens,
            "gc_s": self.gc_s,
            "device_busy_s": self.device_busy_s,
            "device_idle_s": self.device_idle_s,
            "idle_by_reason": dict(self.idle_by_reason),
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "LedgerTotals":
        """Back from plain values."""
        return cls(**plain)


def _less(now: dict[str, float], earlier: dict[str, float]) -> dict[str, float]:
    return {name: seconds - earlier.get(name, 0.0) for name, seconds in now.items()}


def _minus(now: float | None, earlier: float | None) -> float | None:
    return None if now is None else now - (earlier or 0.0)


class Ledger:
    """Keeps account of a thread's time. Costs nothing while it is stopped.

    For hand-written loops:

        ledger = Ledger()
        with ledger:
            for _ in range(num_steps):
                with ledger.spend("data_wait"):
                    batch = next(batches)
                with ledger.spend("dispatch"):
                    state, loss = step(state, batch)
                ledger.num_steps += 1
        print(ledger.totals().parts)

    Args:
        clock: Where times come from.

    Attributes:
        num_steps: Training steps so far.
        num_samples: Examples so far.
        num_tokens: Tokens so far.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK):
        self._now = clock.now
        self._seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._part = OTHER
        self._since_s: float | None = None
        self._gc = _GarbageWatch(clock)
        self.num_steps = 0
        self.num_samples = 0
        self.num_tokens = 0
        self._longest, self._longest_s = OTHER, 0.0
        self.before_switch: Callable[[], None] | None = None
        """Accounts for what has happened and was not told yet; called before anything else is accounted for."""

    @property
    def is_running(self) -> bool:
        """Whether it is keeping account."""
        return self._since_s is not None

    def start(self) -> None:
        """Begin to keep account."""
        if self._since_s is None:
            self._since_s, self._part = self._now(), OTHER
            self._gc.start()

    def stop(self) -> None:
        """Stop; `start` goes on."""
        if self._since_s is not None:
            self.switch(OTHER)
            self._since_s = None
            self._gc.stop()

    def __enter__(self) -> "Ledger":
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def switch(self, part: str) -> str:
        """From now on, time counts for another part.

        Returns:
            The part that it counted for until now.
        """
        if self.before_switch is not None:
            self.before_switch()
        before, since_s = self._part, self._since_s
        if since_s is not None:
            now_s = self._now()
            seconds, elapsed_s = self._seconds, now_s - since_s
            seconds[before] = seconds.get(before, 0.0) + elapsed_s
            self._since_s = now_s
            self._part = part
            if elapsed_s > self._longest_s and before not in (OTHER, DEVICE_WAIT):
                self._longest, self._longest_s = before, elapsed_s
        return before

    @contextmanager
    def spend(self, part: str) -> Iterator[None]:
        """The time of a block counts for a part."""
        before = self.switch(part)
        try:
            yield
        finally:
            self.switch(before)

    def add_call(
        self,
        started_s: float,
        batch_s: float,
        placed_s: float,
        ready_s: float,
        dispatched_s: float,
        num_steps: int = 1,
        num_samples: int = 0,
    ) -> None:
        """Account for a call of the training step, from the times that the loop has taken anyway.

        Args:
            started_s: When the loop began to get its batch.
            batch_s: When it had it.
            placed_s: When the batch was on its way to the device.
            ready_s: When there was room among the steps in flight.
            dispatched_s: When the call returned.
            num_steps: How many steps it makes.
            num_samples: How many examples they have.
        """
        if self._since_s is None:
            return
        seconds = self._seconds
        seconds[OTHER] += started_s - self._since_s
        seconds[DATA_WAIT] += batch_s - started_s
        seconds[HOST_TO_DEVICE] += placed_s - batch_s
        seconds[DEVICE_WAIT] += ready_s - placed_s
        seconds[DISPATCH] += dispatched_s - ready_s
        self._since_s = dispatched_s
        self.num_steps += num_steps
        self.num_samples += num_samples

    def take_longest(self) -> str:
        """What the host was busy with for longest at a stretch since the last call of this, but for steps."""
        longest, self._longest, self._longest_s = self._longest, OTHER, 0.0
        return longest

    def move(self, source: str, target: str, seconds: float) -> None:
        """Time that was counted for one part turns out to be another's."""
        self._seconds[source] -= seconds
        self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def parts(self) -> dict[str, float]:
        """The seconds by part, up to what was accounted for last."""
        return dict(self._seconds)

    def totals(self) -> LedgerTotals:
        """What the ledger shows now."""
        self.switch(self._part)
        parts = dict(self._seconds)
        return LedgerTotals(
            sum(parts.values()), parts, self.num_steps, self.num_samples, self.num_tokens, self._gc.seconds
        )


class _GarbageWatch:
    """How long Python's garbage collection has taken, in any thread."""

    def __init__(self, clock: Clock):
        self.seconds = 0.0
        self._now = clock.now
        self._started_s = 0.0

    def start(self) -> None:
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._started_s = self._now()
        else:
            self.seconds += self._now() - self._started_s
