"""The ledger: where the wall time of a thread goes, all of it.

Exactly one part is running at any moment, so the parts add up to the whole. What happens inside another part counts for
itself only: a checkpoint that a callback saves counts as checkpointing, not for the callback.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
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
"""The parts in which a training step is running: what is left of a run's time without everything else."""
CALLBACK = "callback/"
"""What the parts of callbacks begin with; their names follow."""


CallTimes = tuple[float, float, float, float, float, bool, bool, int, int]
"""A call of the training step: when the loop began to get its batch, had it, had it on its way to the device, found
room among the calls in flight, and when the call returned; whether the device was idle then, and whether the loop was
blocked by it; how many steps it makes, and how many examples they have."""


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
    at_peak_s: float | None = None
    """How long the devices would have taken for the model's own FLOPs at their peak; None where that is not known."""

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
            _minus(self.at_peak_s, earlier.at_peak_s),
        )

    def share(self, part: str) -> float:
        """A part's share of the wall."""
        return self.parts.get(part, 0.0) / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def in_steps_s(self) -> float:
        """The time in which training steps were under way."""
        return sum(self.parts.get(part, 0.0) for part in STEP_PARTS)

    @property
    def steps_per_second(self) -> float:
        """Training steps per second of wall."""
        return self._per_second(self.num_steps)

    @property
    def samples_per_second(self) -> float:
        """Examples per second of wall."""
        return self._per_second(self.num_samples)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of wall."""
        return self._per_second(self.num_tokens)

    def _per_second(self, number: int) -> float:
        return number / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: the model's FLOP/s as a share of the devices' peak, in steps and waiting for data.

        None if the peak is not known.
        """
        in_use_s = self.in_steps_s + self.parts.get(DATA_WAIT, 0.0)
        return None if self.at_peak_s is None or in_use_s <= 0 else self.at_peak_s / in_use_s

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
            "at_peak_s": self.at_peak_s,
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
        on_switch: Called before time is counted for another part, to account for what has happened until then.

    Attributes:
        num_steps: Training steps so far.
        num_samples: Examples so far.
        num_tokens: Tokens so far.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, on_switch: Callable[[], None] | None = None):
        self._now = clock.now
        self._seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._part = OTHER
        self._since_s: float | None = None
        self._gc = _GarbageWatch(clock)
        self.num_steps = 0
        self.num_samples = 0
        self.num_tokens = 0
        self._longest, self._longest_s = OTHER, 0.0
        self.before_switch = on_switch

    def start(self) -> None:
        """Begin to keep account."""
        if self._since_s is None:
            self._since_s, self._part = self._now(), OTHER
            self._gc.start()

    def stop(self) -> None:
        """Stop; `start` resumes."""
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

    def add_calls(self, calls: Iterable[CallTimes]) -> None:
        """Account for calls of the training step, from the times that the loop has taken anyway."""
        since_s = self._since_s
        if since_s is None:
            return
        other_s = data_wait_s = host_to_device_s = device_wait_s = dispatch_s = 0.0
        for started_s, batch_s, placed_s, ready_s, dispatched_s, _, _, num_steps, num_samples in calls:
            other_s += started_s - since_s
            data_wait_s += batch_s - started_s
            host_to_device_s += placed_s - batch_s
            device_wait_s += ready_s - placed_s
            dispatch_s += dispatched_s - ready_s
            since_s = dispatched_s
            self.num_steps += num_steps
            self.num_samples += num_samples
        seconds, self._since_s = self._seconds, since_s
        seconds[OTHER] += other_s
        seconds[DATA_WAIT] += data_wait_s
        seconds[HOST_TO_DEVICE] += host_to_device_s
        seconds[DEVICE_WAIT] += device_wait_s
        seconds[DISPATCH] += dispatch_s

    def take_longest(self) -> str:
        """The part with the longest uninterrupted stretch since the last call of this, apart from steps."""
        longest, self._longest, self._longest_s = self._longest, OTHER, 0.0
        return longest

    def move(self, source: str, target: str, seconds: float) -> None:
        """Move time that was counted for one part to another."""
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
