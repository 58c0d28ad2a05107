"""Collects the facts of a run from its event rows, as they are written or from the file later."""

import contextlib
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from trackside.findings.facts import COMPILE_PHASES, HOST, OWN_LOOP, EagerStep, EpochFacts, RunFacts, ToolFacts
from trackside.findings.loader_facts import LoaderFacts, loaders_of
from trackside.profiling.fresh_memory import FreshMemory
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

_NOT_IDLE = frozenset({VALIDATION, CHECKPOINTING, COMPILE})
"""What may come between two epochs by design, and has its own rules."""


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
        self._fresh_memory: FreshMemory | None = None
        self._timers: dict[str, dict[str, Any]] = {}
        self._log_every_n_steps: int | None = None
        self._check_val_every_n_steps: int | None = None
        self._tools: dict[str, ToolFacts] = {}
        self._longest_s: dict[str, float] = {}
        self._num_checkpoints = 0
        self._num_devices: int | None = None
        self._platform: str | None = None
        self._loaders: dict[str, LoaderFacts] = {}
        self._library = ""
        self._can_fuse_steps: bool | None = None
        self._is_own_loop = False
        self._is_on_host = False
        self._eager_steps: dict[str, EagerStep] = {}
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
            "fresh_memory": self._add_fresh_memory,
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
            fresh_memory=self._fresh_memory,
            timers=dict(self._timers),
            batch_size=_mean_batch_size(ledger),
            num_devices=self._num_devices,
            platform=self._platform,
            loaders=dict(self._loaders),
            library=self._library,
            can_fuse_steps=self._can_fuse_steps,
            is_own_loop=self._is_own_loop,
            is_on_host=self._is_on_host,
            eager_steps=dict(self._eager_steps),
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

    def _add_fresh_memory(self, row: Mapping[str, Any]) -> None:
        fields = {name: row[name] for name in FreshMemory.__dataclass_fields__}
        self._fresh_memory = msgspec.convert(fields, FreshMemory)

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
            self._is_on_host = list(row["devices"]) == [HOST]
        if row.get("loaders") is not None:
            self._loaders = loaders_of(row["loaders"])
        self._library = str(row.get("library") or self._library)
        if row.get("can_fuse_steps") is not None:
            self._can_fuse_steps = bool(row["can_fuse_steps"])
        self._is_own_loop = self._is_own_loop or row.get("loop") == OWN_LOOP
        self._eager_steps |= msgspec.convert(row.get("eager_steps") or {}, dict[str, EagerStep])

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
    if first is None or second is None:
        return second if first is None else first
    return first.plus(second)
