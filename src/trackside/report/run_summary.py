"""The summary of a run: built once, and rendered by the terminal, by `summary.json` and by the page.

The format of `summary.json` is `trackside.summary/1`. A field may be added within a version; a field that changes its
meaning or is removed makes a new version. What was not measured is null. `docs/report.md` describes every field.
"""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from trackside.errors import ConfigError
from trackside.files import write_atomically
from trackside.findings import Finding
from trackside.profiling.first_step import TimeToFirstStep
from trackside.profiling.ledger_totals import COMPILE, LedgerTotals
from trackside.report.compile_summary import CompileSummary, summarise_compiles
from trackside.report.memory_summary import MemorySummary, summarise_memory
from trackside.report.scope_summary import ScopeSummary, summarise_scopes
from trackside.report.step_time_summary import StepTimeSummary, summarise_step_times
from trackside.runs import Leg, Run, SilentHost, SlowHost
from trackside.runs.best_metric import BestMetric, best_metric
from trackside.runs.status_words import STOPPED_EARLY, RunStatus, read_status

FORMAT = "trackside.summary/1"


@dataclass(frozen=True)
class RunSummary:
    """The figures of a run."""

    name: str
    path: str
    status: str
    """How it ended (`success`, `stopped early`, `error`, `nan`, `interrupted`), `running`, or `dead`: it has no final
    status, and no process trains it."""
    stop_reason: str | None
    """Why a callback ended the training before its goal; None unless the status is `stopped early`."""
    is_finished: bool
    step: int
    goal: int | None
    """How many steps it will have; None where that is not known."""
    epoch: int
    started_at: float
    """In seconds since 1970, as all moments."""
    ended_at: float
    """When the last row was written."""
    num_processes: int
    environment: dict[str, Any]
    """Versions, devices, code and command line."""
    findings: list[Finding]
    """The verdicts, the most severe first."""
    silenced: list[Finding] = field(default_factory=list, kw_only=True)
    """What was found and is not shown, because the run's config or the reader silences it."""
    ledger: LedgerTotals | None
    """Where the time of the thread that trains went, over all legs."""
    timers: dict[str, dict[str, Any]]
    """What timers measured, by operation: `avg_time`, `total_time` and `count` among others."""
    step_time: StepTimeSummary | None
    best: BestMetric | None
    last_metrics: dict[str, dict[str, float | None]]
    """The last value of each metric, by mode; None where it was not finite."""
    scopes: ScopeSummary | None
    """Device time by scope in the last capture; None without one."""
    num_captures: int
    compiles: CompileSummary
    memory: MemorySummary | None
    """None without a memory profiler."""
    num_checkpoints: int
    goodput: float | None
    """The share of the time since the training began that went into steps whose results were kept."""
    mfu: float | None
    """The model's FLOP/s as a share of the devices' peak, in steps and while waiting for data."""
    mfu_range: tuple[float, float] | None
    """The least and the most that this may be, where the peak was measured."""
    legs: list[Leg]
    """The processes that trained it, one after the other."""
    num_repeated_steps: int
    """Steps that had to be repeated because a leg resumed from an earlier checkpoint."""
    slow_hosts: list[SlowHost]
    """Processes that the others wait for."""
    silent_hosts: list[SilentHost]
    """Processes that stopped writing while the others continued."""
    problems: list[str]
    """What was wrong with the run's files."""
    time_to_first_step: TimeToFirstStep | None = None
    """How long the run took to make its first step, with the parts of that time; each of `legs` has its own."""

    @property
    def run_status(self) -> RunStatus:
        """The status in words."""
        return RunStatus(self.status, self.stop_reason, self.step if self.status == STOPPED_EARLY else None)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        plain = msgspec.to_builtins(self, enc_hook=str)
        for host, written in zip(self.slow_hosts, plain["slow_hosts"], strict=True):
            written["factor"] = host.factor
        return _without_non_finite({"format": FORMAT, **plain})

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The summary that `to_dict` was called on.

        Args:
            plain: What `to_dict` gave, or what is in `summary.json`. Unknown fields are ignored.

        Raises:
            ConfigError: It is not a summary of this format.
        """
        if plain.get("format") != FORMAT:
            raise ConfigError(f"format: expected {FORMAT!r}, got {plain.get('format')!r}; write the summary again")
        try:
            return msgspec.convert(plain, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"summary: {error}; write the summary again") from error

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write `summary.json`; a reader finds the old one or the new one, never half of it.

        Args:
            path: The file.
        """
        target = Path(path)
        encoded = msgspec.json.format(msgspec.json.encode(self.to_dict()), indent=1)
        write_atomically(target, encoded.decode() + "\n")
        return target


def summarise_run(run: Run) -> RunSummary:
    """The figures of a run.

    Args:
        run: The run, as `trackside.open_run` gives it.
    """
    status = read_status(run)
    return RunSummary(
        name=run.name,
        path=str(run.path),
        status=status.word,
        stop_reason=status.stop_reason,
        is_finished=run.is_finished,
        step=run.step,
        goal=run.goal,
        epoch=run.epoch,
        started_at=run.started_at,
        ended_at=run.ended_at,
        num_processes=len(run.process_indices),
        environment=run.environment,
        findings=run.findings,
        silenced=run.silenced_findings,
        ledger=run.ledger,
        timers=run.timers,
        step_time=summarise_step_times(run.step_times, run.step),
        best=best_metric(run),
        last_metrics=_last_metrics(run),
        scopes=summarise_scopes(run.captures),
        num_captures=len(run.captures),
        compiles=summarise_compiles(
            run.compiles, run.ledger.parts.get(COMPILE, 0.0) if run.ledger is not None else 0.0
        ),
        memory=summarise_memory(run.memory, run.leaks),
        num_checkpoints=len(run.checkpoints),
        goodput=run.goodput,
        mfu=run.mfu,
        mfu_range=run.mfu_range,
        legs=_legs(run.legs, status),
        num_repeated_steps=_num_repeated_steps(run.legs),
        slow_hosts=run.hosts.slow if run.hosts is not None else [],
        silent_hosts=run.hosts.silent if run.hosts is not None else [],
        problems=run.problems,
        time_to_first_step=run.time_to_first_step,
    )


def _last_metrics(run: Run) -> dict[str, dict[str, float | None]]:
    """The last row of each mode."""
    return {
        mode: {name: _finite(table[name][-1]) for name in table.names if name != "epoch" and table.has_at(name, -1)}
        for mode, table in run.metrics.items()
        if len(table)
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _legs(legs: Sequence[Leg], status: RunStatus) -> list[Leg]:
    """The legs, the last of which ended as the run did."""
    if status.word != STOPPED_EARLY or not legs:
        return list(legs)
    return [*legs[:-1], replace(legs[-1], status=status.word)]


def _num_repeated_steps(legs: Sequence[Leg]) -> int:
    return sum(
        max((before.last_step or before.first_step) - after.first_step, 0) for before, after in itertools.pairwise(legs)
    )


def _without_non_finite(plain: Any) -> Any:
    """A copy with None for numbers that JSON cannot express."""
    if isinstance(plain, dict):
        return {str(key): _without_non_finite(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_without_non_finite(value) for value in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
