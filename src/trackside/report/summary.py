"""A run in figures: what `trackside report` shows, and `summary.json` holds.

The form of `summary.json` is `trackside.summary/1`. A field may be added within a version; one that changes its meaning
or goes away makes a new version. What was not measured is null. `docs/report.md` describes every field.
"""

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from trackside.files import write_atomically
from trackside.findings import Finding
from trackside.profiling.ledger import LedgerTotals
from trackside.report.best_metric import BestMetric, best_metric
from trackside.report.compile_summary import CompileSummary, summarise_compiles
from trackside.report.memory_summary import MemorySummary, summarise_memory
from trackside.report.scope_summary import ScopeSummary, summarise_scopes
from trackside.report.step_time import StepTimeSummary, summarise_step_times
from trackside.runs import Leg, Run, SilentHost, SlowHost

FORMAT = "trackside.summary/1"
FILE_NAME = "summary.json"


@dataclass(frozen=True)
class RunSummary:
    """A run in figures."""

    name: str
    path: str
    status: str
    """How it ended (`success`, `error`, `nan`, `interrupted`), `running`, or `dead`: ended without a word."""
    is_finished: bool
    step: int
    goal: int | None
    """How many steps it will have; None where that is not known."""
    epoch: int
    started_at: float
    """In seconds since the epoch, as all moments."""
    ended_at: float
    """When it wrote last."""
    num_processes: int
    environment: dict[str, Any]
    """Versions, devices, code and command line."""
    findings: list[Finding]
    """The verdicts, the most severe first."""
    ledger: LedgerTotals | None
    """Where the time of the thread that trains went, over all legs."""
    timers: dict[str, dict[str, Any]]
    """What timers measured, by operation: `avg_time`, `total_time` and `count` among others."""
    step_time: StepTimeSummary | None
    best: BestMetric | None
    last_metrics: dict[str, dict[str, float]]
    """The last value of each metric, by mode."""
    scopes: ScopeSummary | None
    """What the last capture says; None without one."""
    num_captures: int
    compiles: CompileSummary
    memory: MemorySummary | None
    """None without a memory profiler."""
    num_checkpoints: int
    goodput: float | None
    """The share of the time since the training began that went into steps whose results were kept."""
    mfu: float | None
    """The share of the devices' peak that the model's own FLOPs made use of, in steps and waiting for data."""
    legs: list[Leg]
    """Each time that somebody trained it."""
    slow_hosts: list[SlowHost]
    """Processes that the others wait for."""
    silent_hosts: list[SilentHost]
    """Processes that write nothing any more while the others go on."""
    problems: list[str]
    """What was wrong with the run's files."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        own = {
            name: getattr(self, name)
            for name in (
                *("name", "path", "status", "is_finished", "step", "goal", "epoch", "started_at", "ended_at"),
                *("num_processes", "environment", "num_captures", "num_checkpoints", "goodput", "mfu", "problems"),
            )
        }
        parts = {
            name: None if (part := getattr(self, name)) is None else part.to_dict()
            for name in ("ledger", "step_time", "best", "scopes", "compiles", "memory")
        }
        plain = {
            "format": FORMAT,
            **own,
            "last_metrics": self.last_metrics,
            "timers": self.timers,
            "findings": [finding.to_dict() for finding in self.findings],
            **parts,
            "legs": [asdict(leg) for leg in self.legs],
            "slow_hosts": [{**asdict(host), "factor": host.factor} for host in self.slow_hosts],
            "silent_hosts": [asdict(host) for host in self.silent_hosts],
        }
        return _without_non_finite(plain)

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
    """A run in figures.

    Args:
        run: The run, as `trackside.open_run` gives it.
    """
    return RunSummary(
        name=run.name,
        path=str(run.path),
        status=run.status,
        is_finished=run.is_finished,
        step=run.step,
        goal=run.goal,
        epoch=run.epoch,
        started_at=run.started_at,
        ended_at=run.ended_at,
        num_processes=len(run.process_indices),
        environment=run.environment,
        findings=run.findings,
        ledger=run.ledger,
        timers=run.timers,
        step_time=summarise_step_times(run.step_times, run.step),
        best=best_metric(run),
        last_metrics=_last_metrics(run),
        scopes=summarise_scopes(run.captures),
        num_captures=len(run.captures),
        compiles=summarise_compiles(run.compiles),
        memory=summarise_memory(run.memory, run.leaks),
        num_checkpoints=len(run.checkpoints),
        goodput=run.goodput,
        mfu=run.mfu,
        legs=run.legs,
        slow_hosts=run.hosts.slow if run.hosts is not None else [],
        silent_hosts=run.hosts.silent if run.hosts is not None else [],
        problems=run.problems,
    )


def _last_metrics(run: Run) -> dict[str, dict[str, float]]:
    """The last row of each mode."""
    return {
        mode: {
            name: float(table[name][-1]) for name in table.names if name != "epoch" and not math.isnan(table[name][-1])
        }
        for mode, table in run.metrics.items()
        if len(table)
    }


def _without_non_finite(plain: Any) -> Any:
    """A copy with None for what JSON has no word for."""
    if isinstance(plain, dict):
        return {str(key): _without_non_finite(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_without_non_finite(value) for value in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
