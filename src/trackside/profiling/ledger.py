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
from trackside.profiling.call_record import CallRecord

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

    Attributes:
        calls: Calls of a training step that are not accounted for yet. A loop adds to it; they are accounted for
            several at once, which costs less than one by one, and before anything else is.
        num_steps: Training steps so far.
        num_samples: Examples so far.
        num_tokens: Tokens so far.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK):
        self._now = clock.now
        self._part = OTHER
        self._since_s: float | None = None
        self._gc = _GarbageWatch(clock)
        self._take_calls: Callable[[list[CallRecord]], None] = self.add_calls
        self.calls: list[CallRecord] = []
        self.reset()

    def reset(self) -> None:
        """Begin again with nothing spent."""
        self._seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._longest, self._longest_s = OTHER, 0.0
        self._gc.seconds = 0.0
        self.calls.clear()
        self.num_steps = self.num_samples = self.num_tokens = 0

    def start(self, take_calls: Callable[[list[CallRecord]], None] | None = None) -> None:
        """Begin to keep account.

        Args:
            take_calls: Accounts for calls by `add_calls`, and does what else has to be done with them; by default
                they are accounted for and that is all.
        """
        if self._since_s is None:
            self._since_s, self._part = self._now(), OTHER
            self._take_calls = self.add_calls if take_calls is None else take_calls
            self._gc.start()

    def stop(self) -> None:
        """Stop. `start` continues."""
        if self._since_s is not None:
            self.switch(OTHER)
            self._since_s = None
            self._gc.stop()

    def account(self) -> None:
        """Account for the calls in `calls`."""
        if self.calls:
            calls = self.calls[:]
            self.calls.clear()
            self._take_calls(calls)

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
        if self.calls:
            self.account()
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

    def add_calls(self, calls: Iterable[CallRecord]) -> None:
        """Account for calls of the training step, from the times that the loop has taken anyway."""
        since_s = self._since_s
        if since_s is None:
            return
        other_s = data_wait_s = host_to_device_s = device_wait_s = dispatch_s = 0.0
        for call in calls:
            other_s += call.started_s - since_s
            data_wait_s += call.batch_s - call.started_s
            host_to_device_s += call.placed_s - call.batch_s
            device_wait_s += call.ready_s - call.placed_s
            dispatch_s += call.dispatched_s - call.ready_s
            since_s = call.dispatched_s
            self.num_steps += call.num_steps
            self.num_samples += call.num_samples
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
