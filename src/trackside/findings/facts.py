"""What the rules judge: the measurements of a run as plain data, given directly or read from its event rows."""

import contextlib
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from trackside.profiling.ledger import CHECKPOINTING, COMPILE, VALIDATION, LedgerTotals
from trackside.trace.capture_row import CaptureRow

# Nothing grows with the run: what is older than this many rows of a kind no longer counts.
MAX_STEP_TIMES = 4096
MAX_COMPILES = 1024
MAX_CAPTURES = 16
MAX_LEAKS = 64
MAX_EPOCHS = 1024
NUM_FIRST_EPOCHS = 64
"""Epochs that stay when others are forgotten: a last batch of another shape compiles in the first."""

_NOT_IDLE = frozenset({VALIDATION, CHECKPOINTING, COMPILE})
"""What may come between two epochs by design, and has its own rules."""


@dataclass(frozen=True)
class EpochFacts:
    """What is known of one epoch of training."""

    epoch: int
    last_step: int
    time_s: float | None = None
    """How long its training took, without validation."""
    idle_after_s: float | None = None
    """How long the device had nothing to do after it, before the next one, but for validation, checkpoints and
    compilation; None where that is not known."""
    idle_reason: str = ""
    """The part of the ledger that most of it went into."""


@dataclass(frozen=True)
class RunFacts:
    """The measurements of a run. What was not measured is None or empty, and no rule guesses it."""

    ledger: LedgerTotals | None = None
    """Where the time went, over all legs of the run."""
    step_time_s: float | None = None
    """The median time of a step that nothing disturbed."""
    log_every_n_steps: int | None = None
    epochs: list[EpochFacts] = field(default_factory=list)
    """The epochs that are over."""
    compiles: list[dict[str, Any]] = field(default_factory=list)
    """The rows `compile`, but for those of single operations and of the trainer's set-up."""
    captures: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """The rows `capture`; `report` is what `TraceReport.to_dict` gives."""
    leaks: list[dict[str, Any]] = field(default_factory=list)
    """The rows `memory_leak`."""
    timers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By operation, what `TrainingProfiler.get_summary` gives: `avg_time`, `total_time`, `count` and so on."""
    batch_size: int | None = None
    """How many examples a step has, in the mean."""
    num_devices: int | None = None
    platform: str | None = None
    """What JAX calls the backend: `cpu`, `gpu`, `tpu`."""


def facts_from_events(rows: Iterable[Mapping[str, Any]]) -> RunFacts:
    """The measurements that the rows of a run's event file hold.

    Args:
        rows: The rows in order, as `trackside.events.read_events` gives them. Rows of other kinds are skipped.
    """
    collector = FactCollector()
    for row in rows:
        collector.add(row)
    return collector.facts()


class FactCollector:
    """Gathers facts from event rows as they come, in memory that does not grow with the run.

    A row `leg` begins a new ledger: rows `ledger` are totals since then, and the legs add up. A row `between_epochs`
    has the parts of the ledger from the completion of an epoch's last step to the call of the next epoch's first.

    The same rows give the same facts whether they are added while they are written or read from the file later. For a
    training that resumes, add the rows of its earlier legs first.
    """

    def __init__(self) -> None:
        self._earlier_legs: LedgerTotals | None = None
        self._leg: LedgerTotals | None = None
        self._has_begun = False
        self._step_time_s: float | None = None
        self._logged_step_times: deque[float] = deque(maxlen=MAX_STEP_TIMES)
        self._epochs: dict[int, EpochFacts] = {}
        self._compiles: deque[dict[str, Any]] = deque(maxlen=MAX_COMPILES)
        self._captures: deque[CaptureRow] = deque(maxlen=MAX_CAPTURES)
        self._leaks: deque[dict[str, Any]] = deque(maxlen=MAX_LEAKS)
        self._timers: dict[str, dict[str, Any]] = {}
        self._log_every_n_steps: int | None = None
        self._num_devices: int | None = None
        self._platform: str | None = None
        self._readers = {
            "leg": self._add_leg,
            "ledger": self._add_ledger,
            "metrics": self._add_metrics,
            "compile": self._add_compile,
            "capture": lambda row: self._captures.append(CaptureRow.of(row)),
            "memory_leak": self._add_leak,
            "profiling": self._add_timers,
            "between_epochs": self._add_pause,
            "config": self._add_config,
            "environment": self._add_environment,
        }

    def add(self, row: Mapping[str, Any]) -> None:
        """Take a row. One of another kind, or one that lacks a field or has something else in it, is skipped."""
        kind = row.get("kind")
        reader = self._readers.get(kind) if isinstance(kind, str) else None
        if reader is not None:
            with contextlib.suppress(AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
                reader(row)

    def facts(self) -> RunFacts:
        """What the rows so far say."""
        ledger = _sum(self._earlier_legs, self._leg)
        return RunFacts(
            ledger=ledger,
            step_time_s=self._step_time_s if self._step_time_s is not None else _median(self._logged_step_times),
            log_every_n_steps=self._log_every_n_steps,
            epochs=list(self._epochs.values()),
            compiles=list(self._compiles),
            captures=list(self._captures),
            leaks=list(self._leaks),
            timers=dict(self._timers),
            batch_size=_mean_batch_size(ledger),
            num_devices=self._num_devices,
            platform=self._platform,
        )

    def _add_leg(self, row: Mapping[str, Any]) -> None:
        first_step = int(row["step"])
        if not self._has_begun:  # so far it was set-up, which is not in the ledger
            self._compiles.clear()
        self._has_begun = True
        self._earlier_legs = _sum(self._earlier_legs, self._leg)
        self._leg = None
        # What came after the step from which the leg resumes was lost, and is trained again.
        self._epochs = {number: epoch for number, epoch in self._epochs.items() if epoch.last_step <= first_step}

    def _add_ledger(self, row: Mapping[str, Any]) -> None:
        fields = LedgerTotals.__dataclass_fields__
        self._leg = msgspec.convert({name: row[name] for name in fields if name in row}, LedgerTotals)
        if row.get("step_time_s") is not None:
            self._step_time_s = float(row["step_time_s"])

    def _add_metrics(self, row: Mapping[str, Any]) -> None:
        values = row.get("values") or {}
        if row.get("mode") == "train" and values.get("step_time") is not None:
            self._logged_step_times.append(float(values["step_time"]))
        elif row.get("mode") == "train_epoch":
            number, time_s = int(row["epoch"]), values.get("epoch_time")
            self._epochs.pop(number, None)  # one that was trained again after a resume: the last counts
            self._epochs[number] = EpochFacts(number, int(row["step"]), None if time_s is None else float(time_s))
            if len(self._epochs) > MAX_EPOCHS:
                del self._epochs[list(self._epochs)[NUM_FIRST_EPOCHS]]

    def _add_compile(self, row: Mapping[str, Any]) -> None:
        if not row.get("is_operation"):  # there may be thousands of single operations
            compiled = {"step": None, "changes": [], "suggestion": "", "num_recompiles": 0, **row}
            self._compiles.append({**compiled, **vars(msgspec.convert(compiled, _CompileFields))})

    def _add_leak(self, row: Mapping[str, Any]) -> None:
        self._leaks.append({**row, **vars(msgspec.convert(row, _LeakFields))})

    def _add_timers(self, row: Mapping[str, Any]) -> None:
        self._timers = {
            name: {**summary, **vars(msgspec.convert(summary, _TimerFields))}
            for name, summary in (row.get("operations") or {}).items()
        }

    def _add_pause(self, row: Mapping[str, Any]) -> None:
        epoch = self._epochs.get(int(row["epoch"]))
        if epoch is not None:
            idle = {part: float(part_s) for part, part_s in row["parts"].items() if part not in _NOT_IDLE}
            reason = max(idle, key=idle.__getitem__, default="")
            self._epochs[epoch.epoch] = replace(epoch, idle_after_s=sum(idle.values()), idle_reason=reason)

    def _add_config(self, row: Mapping[str, Any]) -> None:
        trainer = (row.get("config") or {}).get("trainer") or {}
        cadence = (trainer.get("logger") or {}).get("log_every_n_steps")
        self._log_every_n_steps = self._log_every_n_steps if cadence is None else int(cadence)

    def _add_environment(self, row: Mapping[str, Any]) -> None:
        self._platform = self._platform if row.get("backend") is None else str(row["backend"])
        if row.get("devices") is not None:
            self._num_devices = len(row["devices"])


@dataclass
class _Change:
    path: str
    kind: str
    old: str
    new: str


@dataclass
class _CompileFields:
    """What the rules need of a row `compile`."""

    function: str
    step: int | None
    changes: list[dict[str, Any]]
    suggestion: str
    num_recompiles: int
    trace_s: float | None = None
    lower_s: float | None = None
    compile_s: float | None = None

    def __post_init__(self) -> None:
        msgspec.convert(self.changes, list[_Change])


@dataclass
class _LeakFields:
    """What the rules need of a row `memory_leak`."""

    name: str
    step: int
    bytes_per_step: float
    since_step: int


@dataclass
class _TimerFields:
    """What the rules need of a timer."""

    avg_time: float
    count: int


def _median(values: Collection[float]) -> float | None:
    return statistics.median(values) if values else None


def _mean_batch_size(ledger: LedgerTotals | None) -> int | None:
    if ledger is None or not ledger.num_steps or not ledger.num_samples:
        return None
    return round(ledger.num_samples / ledger.num_steps)


def _sum(first: LedgerTotals | None, second: LedgerTotals | None) -> LedgerTotals | None:
    """The totals of two legs."""
    if first is None or second is None:
        return second if first is None else first
    return LedgerTotals(
        first.wall_s + second.wall_s,
        _sum_by_name(first.parts, second.parts),
        first.num_steps + second.num_steps,
        first.num_samples + second.num_samples,
        first.num_tokens + second.num_tokens,
        first.gc_s + second.gc_s,
        _sum_known(first.device_busy_s, second.device_busy_s),
        _sum_known(first.device_idle_s, second.device_idle_s),
        _sum_by_name(first.idle_by_reason, second.idle_by_reason),
        _sum_at_peak(first, second),
    )


def _sum_at_peak(first: LedgerTotals, second: LedgerTotals) -> float | None:
    """Known where it is known of all steps: a utilisation of some of them would be too low."""
    legs = [leg.at_peak_s for leg in (first, second) if leg.num_steps]
    known = [at_peak_s for at_peak_s in legs if at_peak_s is not None]
    return sum(known) if known and len(known) == len(legs) else None


def _sum_by_name(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}


def _sum_known(first: float | None, second: float | None) -> float | None:
    return None if first is None and second is None else (first or 0.0) + (second or 0.0)
