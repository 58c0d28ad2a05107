"""What the rules judge: the measurements of a run as plain data, given directly or read from its event rows."""

import contextlib
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from trackside.findings.loader_facts import LoaderFacts, loaders_of
from trackside.profiling.ledger_totals import CHECKPOINTING, COMPILE, DATA_WAIT, VALIDATION, LedgerTotals
from trackside.trace.capture_row import CaptureRow

# Nothing grows with the run: what is older than this many rows of a kind no longer counts.
MAX_STEP_TIMES = 4096
MAX_COMPILES = 1024
MAX_CAPTURES = 16
MAX_LEAKS = 64
MAX_EPOCHS = 1024
NUM_FIRST_EPOCHS = 64
"""Epochs that stay when others are forgotten: a last batch of another shape compiles in the first."""

COMPILE_PHASES = ("trace_s", "lower_s", "compile_s")
"""What a row `compile` has the times of."""
OWN_LOOP = "own"
"""What the row `environment` calls a loop that is not the trainer's."""

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
    data_wait_after_s: float = 0.0
    """How much of it was spent waiting for the first batch of the next epoch."""


@dataclass(frozen=True)
class ToolFacts:
    """What is known of a logging tool that runs on a thread of its own, over all legs."""

    num_waiting: int = 0
    """Calls that it still had to do when the training ended."""
    num_dropped: int = 0
    """Calls that it never got."""
    closing_s: float = 0.0
    """How long the training waited for it at the end."""


@dataclass(frozen=True)
class RunFacts:
    """The measurements of a run. What was not measured is None or empty, and no rule guesses it."""

    ledger: LedgerTotals | None = None
    """Where the time went, over all legs of the run."""
    step_time_s: float | None = None
    """The median time of a step that nothing disturbed."""
    log_every_n_steps: int | None = None
    check_val_every_n_steps: int | None = None
    epochs: list[EpochFacts] = field(default_factory=list)
    """The epochs that are over."""
    compiles: list[dict[str, Any]] = field(default_factory=list)
    """The rows `compile`, except those of single operations, and of set-up if the ledger begins after it."""
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
    loaders: Mapping[str, LoaderFacts] = field(default_factory=dict)
    """What the batches come from: `train`, `val` and `test`; `val/<name>` for one of several."""
    can_fuse_steps: bool | None = None
    """Whether the trainer makes one step in a call, and could make several."""
    is_own_loop: bool = False
    """Whether the loop is the user's, measured by `trackside.run`."""
    data_wait_between_epochs_s: float = 0.0
    """How long the loop waited for the first batch of an epoch, after the first epoch."""
    first_batch_s: float = 0.0
    """How long the loop waited for the very first batch, for which a loader may start its workers, over all legs."""
    num_pauses: int = 0
    """How many pauses between epochs that was in."""
    tools: Mapping[str, ToolFacts] = field(default_factory=dict)
    """Logging tools that were behind when the training ended, by name."""
    longest_s: Mapping[str, float] = field(default_factory=dict)
    """The longest time that the loop was in a part of the ledger at once, where it was long."""
    num_checkpoints: int = 0
    """How many were saved."""
    operation_compile_s: float = 0.0
    """How long single operations compiled, of which there may be thousands."""
    silenced: tuple[str, ...] = ()
    """The ids of findings that the run's config leaves out."""


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
        self._leg_number: int | None = None
        self._set_up_compiles: list[dict[str, Any]] = []
        self._step_time_s: float | None = None
        self._logged_step_times: deque[float] = deque(maxlen=MAX_STEP_TIMES)
        self._epochs: dict[int, EpochFacts] = {}
        self._compiles: deque[dict[str, Any]] = deque(maxlen=MAX_COMPILES)
        self._captures: deque[CaptureRow] = deque(maxlen=MAX_CAPTURES)
        self._leaks: deque[dict[str, Any]] = deque(maxlen=MAX_LEAKS)
        self._timers: dict[str, dict[str, Any]] = {}
        self._log_every_n_steps: int | None = None
        self._check_val_every_n_steps: int | None = None
        self._tools: dict[str, ToolFacts] = {}
        self._longest_s: dict[str, float] = {}
        self._num_checkpoints = 0
        self._num_devices: int | None = None
        self._platform: str | None = None
        self._loaders: dict[str, LoaderFacts] = {}
        self._can_fuse_steps: bool | None = None
        self._is_own_loop = False
        self._operation_compile_s = 0.0
        self._data_wait_between_epochs_s = 0.0
        self._num_pauses = 0
        self._first_batch_s = 0.0
        self._silenced: tuple[str, ...] = ()
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
            "silence": self._add_silence,
            "logging_tool": self._add_tool,
            "checkpoint": self._add_checkpoint,
            "first_step": self._add_first_step,
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
            check_val_every_n_steps=self._check_val_every_n_steps,
            epochs=list(self._epochs.values()),
            compiles=[*(self._set_up_compiles if ledger is None or ledger.has_set_up else ()), *self._compiles],
            captures=list(self._captures),
            leaks=list(self._leaks),
            timers=dict(self._timers),
            batch_size=_mean_batch_size(ledger),
            num_devices=self._num_devices,
            platform=self._platform,
            loaders=dict(self._loaders),
            can_fuse_steps=self._can_fuse_steps,
            is_own_loop=self._is_own_loop,
            operation_compile_s=self._operation_compile_s,
            data_wait_between_epochs_s=self._data_wait_between_epochs_s,
            num_pauses=self._num_pauses,
            first_batch_s=self._first_batch_s,
            tools=dict(self._tools),
            longest_s=dict(self._longest_s),
            num_checkpoints=self._num_checkpoints,
            silenced=self._silenced,
        )

    def _add_leg(self, row: Mapping[str, Any]) -> None:
        first_step, self._leg_number = int(row["step"]), row.get("leg")
        if not self._has_begun:  # so far it was set-up, which earlier versions did not have in the ledger
            self._set_up_compiles = list(self._compiles)
            self._compiles.clear()
            self._operation_compile_s = 0.0
        self._has_begun = True
        self._earlier_legs = _sum(self._earlier_legs, self._leg)
        self._leg = None
        # What came after the step from which the leg resumes was lost, and is trained again.
        self._epochs = {number: epoch for number, epoch in self._epochs.items() if epoch.last_step <= first_step}

    def _add_ledger(self, row: Mapping[str, Any]) -> None:
        if is_of_another_leg(row, self._leg_number):
            return
        fields = LedgerTotals.__dataclass_fields__
        self._leg = msgspec.convert({name: row[name] for name in fields if name in row}, LedgerTotals)
        if row.get("step_time_s") is not None:
            self._step_time_s = float(row["step_time_s"])
        for part, part_s in (row.get("longest_s") or {}).items():
            self._longest_s[part] = max(self._longest_s.get(part, 0.0), float(part_s))

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
        if row.get("is_operation"):  # there may be thousands
            self._operation_compile_s += sum(float(row.get(part) or 0.0) for part in COMPILE_PHASES)
        else:
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
        if epoch is None:
            return
        idle = {part: float(part_s) for part, part_s in row["parts"].items() if part not in _NOT_IDLE}
        data_wait_s = idle.get(DATA_WAIT, 0.0)
        self._data_wait_between_epochs_s += data_wait_s
        self._num_pauses += 1
        reason = max(idle, key=idle.__getitem__, default="")
        self._epochs[epoch.epoch] = replace(
            epoch, idle_after_s=sum(idle.values()), idle_reason=reason, data_wait_after_s=data_wait_s
        )

    def _add_config(self, row: Mapping[str, Any]) -> None:
        trainer = (row.get("config") or {}).get("trainer") or {}
        cadence = (trainer.get("logger") or {}).get("log_every_n_steps")
        self._log_every_n_steps = self._log_every_n_steps if cadence is None else int(cadence)
        cadence = trainer.get("check_val_every_n_steps")
        self._check_val_every_n_steps = self._check_val_every_n_steps if cadence is None else int(cadence)

    def _add_environment(self, row: Mapping[str, Any]) -> None:
        self._platform = self._platform if row.get("backend") is None else str(row["backend"])
        if row.get("devices") is not None:
            self._num_devices = len(row["devices"])
        if row.get("loaders") is not None:
            self._loaders = loaders_of(row["loaders"])
        if row.get("can_fuse_steps") is not None:
            self._can_fuse_steps = bool(row["can_fuse_steps"])
        self._is_own_loop = self._is_own_loop or row.get("loop") == OWN_LOOP

    def _add_tool(self, row: Mapping[str, Any]) -> None:
        name, tool = str(row["tool"]), msgspec.convert(row, ToolFacts)
        before = self._tools.get(name, ToolFacts())
        self._tools[name] = ToolFacts(
            before.num_waiting + tool.num_waiting,
            before.num_dropped + tool.num_dropped,
            before.closing_s + tool.closing_s,
        )

    def _add_first_step(self, row: Mapping[str, Any]) -> None:
        self._first_batch_s += float(row["parts"].get(DATA_WAIT, 0.0))

    def _add_checkpoint(self, row: Mapping[str, Any]) -> None:
        del row
        self._num_checkpoints += 1

    def _add_silence(self, row: Mapping[str, Any]) -> None:
        self._silenced = tuple(str(one) for one in row["findings"])


def is_of_another_leg(row: Mapping[str, Any], leg: int | None) -> bool:
    """Whether a row `ledger` is not of the leg that began last: a process may evaluate what another trains again.

    Args:
        row: The row; earlier versions did not number it.
        leg: The number of the leg, where that is known.
    """
    return leg is not None and row.get("leg") not in (None, leg)


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
        first.outside_s + second.outside_s,
        _sum_idle_limit(first, second, "device_idle_low_s"),
        _sum_idle_limit(first, second, "device_idle_high_s"),
        _sum_at_peak_range(first, second),
    )


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


def _sum_by_name(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}


def _sum_idle_limit(first: LedgerTotals, second: LedgerTotals, name: str) -> float | None:
    """Known where it is known of each leg that observed the device; earlier versions did not write it."""
    limits = [getattr(leg, name) for leg in (first, second) if leg.device_idle_s is not None]
    return sum(limits) if limits and None not in limits else None


def _sum_known(first: float | None, second: float | None) -> float | None:
    return None if first is None and second is None else (first or 0.0) + (second or 0.0)
