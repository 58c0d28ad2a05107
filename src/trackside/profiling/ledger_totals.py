"""What a ledger shows: the parts of a thread's wall time by name, and what follows from them."""

from dataclasses import dataclass, field
from typing import Any

DATA_WAIT = "data_wait"
HOST_TO_DEVICE = "host_to_device"
DISPATCH = "dispatch"
DEVICE_WAIT = "device_wait"
COMPILE = "compile"
LOGGING = "logging"
VALIDATION = "validation"
CHECKPOINTING = "checkpointing"
SETUP = "setup"
INITIAL_STATE = "initial_state"
RESTORING = "restoring"
OTHER = "other"
PARTS = (
    DATA_WAIT,
    HOST_TO_DEVICE,
    DISPATCH,
    DEVICE_WAIT,
    COMPILE,
    LOGGING,
    VALIDATION,
    CHECKPOINTING,
    SETUP,
    INITIAL_STATE,
    RESTORING,
    OTHER,
)
STEP_PARTS = (HOST_TO_DEVICE, DISPATCH, DEVICE_WAIT)
"""The parts in which a training step is running: what is left of a run's time without everything else."""
CALLBACK = "callback/"
"""What the parts of callbacks begin with; their names follow."""
DRAIN = "drain/"
"""What the parts of logging tools begin with that are waited for at the end; their names follow."""
SET_UP_PARTS = (SETUP, INITIAL_STATE, RESTORING)
"""The parts that lead to the first step. Ledgers of earlier versions do not have them."""


def is_once(part: str) -> bool:
    """Whether a part comes with a process, and not with its steps: set-up, compiling, closing tools."""
    return part == COMPILE or part in SET_UP_PARTS or part.startswith(DRAIN)


@dataclass(frozen=True)
class LedgerTotals:
    """What a ledger shows at one moment."""

    wall_s: float
    parts: dict[str, float]
    """Seconds by part; callbacks as `callback/<name>`, waiting for a tool at the end as `drain/<name>`."""
    num_steps: int = 0
    num_samples: int = 0
    num_tokens: int = 0
    gc_s: float = 0.0
    """What Python's garbage collection took, inside whichever parts; not in set-up and compiling, which come once."""
    device_busy_s: float | None = None
    device_idle_s: float | None = None
    """How long the device computed and idled between the first and the last step; None where it was not observed."""
    idle_by_reason: dict[str, float] = field(default_factory=dict)
    """What the host did meanwhile: the part's name."""
    at_peak_s: float | None = None
    """How long the devices would have taken for the model's own FLOPs at their peak; None where that is not known."""
    outside_s: float = 0.0
    """The time between the calls that account was kept of, as in a notebook; no part has it, nor has `wall_s`."""
    device_idle_low_s: float | None = None
    device_idle_high_s: float | None = None
    """How long the device idled at least and at most: when it began and ended is not seen exactly."""
    at_peak_range_s: tuple[float, float] | None = None
    """The least and the most that this may be, for a peak that was measured; None for one without a spread."""

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
            self.outside_s - earlier.outside_s,
            _minus(self.device_idle_low_s, earlier.device_idle_low_s),
            _minus(self.device_idle_high_s, earlier.device_idle_high_s),
            _minus_range(self.at_peak_range_s, earlier.at_peak_range_s),
        )

    def plus(self, other: "LedgerTotals") -> "LedgerTotals":
        """The totals of this and of another leg."""
        return LedgerTotals(
            self.wall_s + other.wall_s,
            _sum_by_name(self.parts, other.parts),
            self.num_steps + other.num_steps,
            self.num_samples + other.num_samples,
            self.num_tokens + other.num_tokens,
            self.gc_s + other.gc_s,
            _sum_known(self.device_busy_s, other.device_busy_s),
            _sum_known(self.device_idle_s, other.device_idle_s),
            _sum_by_name(self.idle_by_reason, other.idle_by_reason),
            _sum_at_peak(self, other),
            self.outside_s + other.outside_s,
            _sum_idle_limit(self, other, "device_idle_low_s"),
            _sum_idle_limit(self, other, "device_idle_high_s"),
            _sum_at_peak_range(self, other),
        )

    def share(self, part: str) -> float:
        """A part's share of the wall."""
        return self.parts.get(part, 0.0) / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def in_steps_s(self) -> float:
        """The time in which training steps were under way."""
        return sum(self.parts.get(part, 0.0) for part in STEP_PARTS)

    @property
    def once_s(self) -> float:
        """The time of what comes with a process and not with its steps: set-up, compiling, closing tools."""
        return sum(seconds for part, seconds in self.parts.items() if is_once(part))

    @property
    def has_set_up(self) -> bool:
        """Whether set-up is in it, and compiling whatever it was for. Earlier versions began with the first epoch."""
        return SETUP in self.parts

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
        """Model FLOPs utilization: the model's FLOP/s as a share of the devices' peak, in steps and waiting for data.

        None if the peak is not known.
        """
        in_use_s = self._in_use_s
        return None if self.at_peak_s is None or in_use_s <= 0 else self.at_peak_s / in_use_s

    @property
    def mfu_range(self) -> tuple[float, float] | None:
        """The least and the most that `mfu` may be, where the peak was measured; None for a peak without a spread."""
        in_use_s = self._in_use_s
        if self.mfu is None or self.at_peak_range_s is None:
            return None
        least_s, most_s = self.at_peak_range_s
        return least_s / in_use_s, most_s / in_use_s

    @property
    def _in_use_s(self) -> float:
        """The time in steps and waiting for data: what the peak is compared with."""
        return self.in_steps_s + self.parts.get(DATA_WAIT, 0.0)

    @property
    def idle_share(self) -> float | None:
        """The device's idle share of the time in which it was observed."""
        if self.device_busy_s is None or self.device_idle_s is None:
            return None
        observed_s = self.device_busy_s + self.device_idle_s
        return self.device_idle_s / observed_s if observed_s > 0 else None

    @property
    def idle_share_interval(self) -> tuple[float, float] | None:
        """Between which shares the idle share is; None where that is not known."""
        if self.idle_share is None or self.device_idle_low_s is None or self.device_idle_high_s is None:
            return None
        observed_s = (self.device_busy_s or 0.0) + (self.device_idle_s or 0.0)
        return max(self.device_idle_low_s / observed_s, 0.0), min(self.device_idle_high_s / observed_s, 1.0)

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
            "outside_s": self.outside_s,
            "device_idle_low_s": self.device_idle_low_s,
            "device_idle_high_s": self.device_idle_high_s,
            "at_peak_range_s": self.at_peak_range_s,
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "LedgerTotals":
        """Back from plain values."""
        return cls(**plain)


def _less(now: dict[str, float], earlier: dict[str, float]) -> dict[str, float]:
    return {name: seconds - earlier.get(name, 0.0) for name, seconds in now.items()}


def _minus(now: float | None, earlier: float | None) -> float | None:
    return None if now is None else now - (earlier or 0.0)


def _minus_range(now: tuple[float, float] | None, earlier: tuple[float, float] | None) -> tuple[float, float] | None:
    least_s, most_s = earlier or (0.0, 0.0)
    return None if now is None else (now[0] - least_s, now[1] - most_s)


def _sum_at_peak(first: LedgerTotals, second: LedgerTotals) -> float | None:
    """Known where it is known of all steps: a utilization of some of them would be too low."""
    legs = [leg.at_peak_s for leg in (first, second) if leg.num_steps]
    known = [at_peak_s for at_peak_s in legs if at_peak_s is not None]
    return sum(known) if known and len(known) == len(legs) else None


def _sum_at_peak_range(first: LedgerTotals, second: LedgerTotals) -> tuple[float, float] | None:
    """A leg whose peak has no spread adds none."""
    if _sum_at_peak(first, second) is None or first.at_peak_range_s is second.at_peak_range_s is None:
        return None
    ranges = [leg.at_peak_range_s or (leg.at_peak_s or 0.0,) * 2 for leg in (first, second)]
    return ranges[0][0] + ranges[1][0], ranges[0][1] + ranges[1][1]


def _sum_by_name(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}


def _sum_idle_limit(first: LedgerTotals, second: LedgerTotals, name: str) -> float | None:
    """Known where it is known of each leg that observed the device; earlier versions did not write it."""
    limits = [getattr(leg, name) for leg in (first, second) if leg.device_idle_s is not None]
    return sum(limits) if limits and None not in limits else None


def _sum_known(first: float | None, second: float | None) -> float | None:
    return None if first is None and second is None else (first or 0.0) + (second or 0.0)
