"""A run on disk: finished, running or dead."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

from trackside.config.declared_types import check_types
from trackside.errors import EventFileError, RunError
from trackside.events import read_events
from trackside.findings import Finding, RunFacts
from trackside.findings.silencing import checked_ids
from trackside.profiling.first_step import TimeToFirstStep
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.profiling.processor_use import ProcessorUse
from trackside.run_layout import CONFIG_FILE_NAME
from trackside.runs.captures import locate_capture
from trackside.runs.facts_of_run import facts_of_rows, with_step_time
from trackside.runs.frames import frame_of
from trackside.runs.host_collector import HostCollector
from trackside.runs.hosts import HostTable, host_table
from trackside.runs.logged_step_times import StepTimes, step_times_of
from trackside.runs.metric_table import MetricModes, MetricTable
from trackside.runs.notebook import html_run
from trackside.runs.plots import Plots
from trackside.runs.process_file import ProcessFile
from trackside.runs.row_collector import RowCollector
from trackside.runs.run_axes import RunAxes, axes_of
from trackside.runs.run_folders import event_files, process_index_of, why_no_run
from trackside.runs.run_legs import Leg, legs_of
from trackside.runs.run_problems import problems_of
from trackside.runs.run_status import DEAD, NOT_STARTED, RUNNING, UNKNOWN, is_held, status_of
from trackside.runs.run_verdicts import verdicts_of
from trackside.runs.written_config import config_of, environment_of
from trackside.trace.capture_row import CaptureRow


def open_run(path: str | os.PathLike[str], silence: Iterable[str] = ()) -> "Run":
    """Open a run, whether it is finished, still running or dead.

    Args:
        path: The run's folder, or one of its event files.
        silence: Findings to leave out, by id, in addition to those that the run's config silences.

    Raises:
        ConfigError: There is no finding of such an id.
        RunError: There is no run.
    """
    check_types(open_run, path=path)
    given = Path(path)
    folder = given.parent if process_index_of(given) is not None else given
    silenced = checked_ids(silence, "silence")
    if not event_files(folder):
        raise RunError(why_no_run(given))
    return Run(folder, silenced)


class Run:
    """A run, read from the event files of its processes. `open_run` makes one.

    What describes the whole run (metrics, ledger, compiles and so on) is what its first process wrote. Recoverable
    damage never raises; see `problems`.

    Args:
        path: The run's folder.
        silenced: The ids of findings to leave out.

    Attributes:
        path: The run's folder.
        name: What the folder is called.
    """

    def __init__(self, path: Path, silenced: Sequence[str] = ()):
        self.path = path
        self._silenced = tuple(silenced)
        self.name = path.resolve().name
        self._processes: dict[int, ProcessFile[RowCollector] | ProcessFile[HostCollector]] = {}
        self._is_held = False
        self.refresh()

    def refresh(self) -> bool:
        """Read what was appended since the last reading, and nothing else.

        Returns:
            Whether there was something, or the training has ended.
        """
        was_held, self._is_held = self._is_held, is_held(self.path)
        has_changed = was_held != self._is_held
        for index, path in event_files(self.path).items():
            process = self._processes.get(index)
            if process is None or process.file.was_replaced():
                process = self._processes[index] = self._open(path, index)
                has_changed = True
            has_changed |= process.read()
        self._processes = dict(sorted(self._processes.items()))
        if has_changed:
            for name in [name for name in self.__dict__ if isinstance(vars(Run).get(name), cached_property)]:
                del self.__dict__[name]
        return has_changed

    def _open(self, path: Path, index: int) -> ProcessFile[RowCollector] | ProcessFile[HostCollector]:
        """One of the files. Everything is kept of the first that has anything."""
        earlier = (process for other, process in self._processes.items() if other < index)
        if any(process.rows.started_at is not None for process in earlier):
            return ProcessFile(path, index, HostCollector())
        return ProcessFile(path, index, RowCollector())

    # --- how it stands ------------------------------------------------------------------------------------------

    @cached_property
    def status(self) -> str:
        """How it ended, in the word of its last row `status`; `running`; or `dead`: no final status was written.

        `not started` for a run that was only built; `unknown` for one that cannot be read at all.
        """
        if self._rows.is_newer and not self._rows.rows:
            return UNKNOWN
        has_steps = not {"train", "default"}.isdisjoint(self._rows.metrics)
        return status_of(self._rows.events("format", "leg", "status"), self._is_held, has_steps)

    @property
    def is_finished(self) -> bool:
        """Whether it ended and said how."""
        return self.status not in (RUNNING, DEAD, NOT_STARTED, UNKNOWN)

    @property
    def step(self) -> int:
        """The last step that was reported."""
        return self._rows.step

    @property
    def epoch(self) -> int:
        """The last epoch that was reported."""
        return self._rows.epoch

    @cached_property
    def goal(self) -> int | None:
        """How many steps the training will have; None if it did not say."""
        goals = [row.get("goal") for row in self._rows.events("leg")]
        return int(goals[-1]) if goals and isinstance(goals[-1], int | float) else None

    @property
    def started_at(self) -> float:
        """When the first row was written, in seconds since the epoch."""
        return min((file.rows.started_at for file in self._processes.values() if file.rows.started_at), default=0.0)

    @property
    def ended_at(self) -> float:
        """When the last row was written, in seconds since the epoch."""
        return max((file.rows.ended_at for file in self._processes.values() if file.rows.ended_at), default=0.0)

    @cached_property
    def problems(self) -> list[str]:
        """What is wrong with the run's files, as sentences."""
        has_file = self._config_file.is_file()
        knows_config = has_file or bool(self.config)
        return list(problems_of(self._processes, has_file, knows_config, is_written=self._is_held))

    @property
    def process_indices(self) -> list[int]:
        """The processes whose event files are there."""
        return list(self._processes)

    # --- what was measured --------------------------------------------------------------------------------------

    @cached_property
    def metrics(self) -> Mapping[str, MetricTable]:
        """The metrics by mode: `train`, `val`, `train_epoch`, `time` and so on."""
        return MetricModes({mode: store.table() for mode, store in self._rows.metrics.items()})

    @cached_property
    def ledger(self) -> LedgerTotals | None:
        """Where the time of the first process went, over all legs; None if that was not written."""
        return self._facts.ledger

    @cached_property
    def facts(self) -> RunFacts:
        """What the rules judge, over all legs: `find(run.facts, (*RULES, my_rule))` asks your own rule too."""
        return with_step_time(self._facts, self.step_times)

    @cached_property
    def legs(self) -> list[Leg]:
        """Each process, or call of `train_model`, that worked on it."""
        return legs_of(self._rows, unfinished=self.status)

    @property
    def time_to_first_step(self) -> TimeToFirstStep | None:
        """How long the run took to make its first step, and what went into that; each of `legs` has its own.

        None if it made none, or an earlier version made it.
        """
        made = (leg for leg in self.legs if leg.time_to_first_step is not None or (leg.last_step or 0) > leg.first_step)
        first = next(made, None)
        return None if first is None else first.time_to_first_step

    @property
    def goodput(self) -> float | None:
        """The share of the time since the training began that went into steps whose results were kept."""
        known = [leg.goodput for leg in self.legs if leg.goodput is not None]
        return known[-1] if known else None

    @property
    def mfu(self) -> float | None:
        """The model's FLOP/s as a share of the devices' peak (MFU); None if the peak is not known."""
        return self.ledger.mfu if self.ledger is not None else None

    @property
    def mfu_range(self) -> tuple[float, float] | None:
        """The least and the most that `mfu` may be, where the peak was measured; None for a peak without a spread."""
        return self.ledger.mfu_range if self.ledger is not None else None

    @cached_property
    def processor_use(self) -> ProcessorUse | None:
        """What the processors of the first process's machine did while it trained; None if that was not recorded."""
        legs: list[ProcessorUse | None] = [None]
        for row in self._rows.events("leg", "processors"):
            if row["kind"] == "leg":
                legs.append(None)
            else:  # everything since the leg began
                legs[-1] = ProcessorUse.from_dict(row)
        known = [use for use in legs if use is not None]
        return reduce(ProcessorUse.plus, known) if known else None

    @cached_property
    def compiles(self) -> list[dict[str, Any]]:
        """The rows `compile`."""
        return list(self._rows.events("compile"))

    @cached_property
    def captures(self) -> list[CaptureRow]:
        """The rows `capture`, with the path at which each is now. Their fields are attributes too: `row.report`."""
        return [locate_capture(row, self.path) for row in self._rows.events("capture")]

    @cached_property
    def memory(self) -> list[dict[str, Any]]:
        """The rows `memory`. If one has no devices or no live arrays, `memory` or `live` is empty."""
        rows = self._rows.events("memory")
        return [{**row, "memory": row.get("memory") or {}, "live": row.get("live") or {}} for row in rows]

    @cached_property
    def checkpoints(self) -> list[dict[str, Any]]:
        """The rows `checkpoint`."""
        return list(self._rows.events("checkpoint"))

    @cached_property
    def leaks(self) -> list[dict[str, Any]]:
        """The rows `memory_leak`."""
        return list(self._rows.events("memory_leak"))

    @cached_property
    def timers(self) -> dict[str, dict[str, Any]]:
        """What the timers found last, by operation."""
        rows = list(self._rows.events("profiling"))
        return dict(rows[-1].get("operations") or {}) if rows else {}

    @property
    def findings(self) -> list[Finding]:
        """The verdicts on all legs, the most severe first, from the same facts as `ledger`.

        With several processes, those that stand out are found here, from the files of all. What is silenced is left
        out.
        """
        return self._verdicts[0]

    @property
    def silenced_findings(self) -> list[Finding]:
        """What is found and not reported, because the run's config or the reader silences it."""
        return self._verdicts[1]

    @cached_property
    def _verdicts(self) -> tuple[list[Finding], list[Finding]]:
        return verdicts_of(self._rows, self.facts, self.hosts, self._silenced)

    @cached_property
    def step_times(self) -> StepTimes:
        """How long steps took over the run."""
        return step_times_of(self.metrics, self.legs, self._rows.events("compile", "capture", "checkpoint"))

    @cached_property
    def axes(self) -> RunAxes:
        """What its curves can be drawn over: time without pauses, and examples."""
        return axes_of(self.started_at, self.legs, self._rows.events("leg", "ledger"))

    @property
    def plot(self) -> Plots:
        """Figures of plotly: `run.plot("loss")`, `run.plot.step_time()`, `run.plot.ledger()`."""
        return Plots(self)

    @cached_property
    def hosts(self) -> HostTable | None:
        """The processes side by side; None for a run of one."""
        if len(self._processes) < 2:
            return None
        return host_table(
            {
                index: HostCollector.of(file.rows) if isinstance(file.rows, RowCollector) else file.rows
                for index, file in self._processes.items()
            }
        )

    # --- what it was --------------------------------------------------------------------------------------------

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration: from the event file, or else from the file next to it."""
        return config_of(self._rows, self._config_file)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """What it ran on: versions, machine, devices, command line."""
        return environment_of(self._rows)

    def events(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """The rows of the first process as they were written, in order.

        Args:
            *kinds: Which kinds; all if left out. Metrics are read from the file again, one by one: `metrics` has them
                as columns.
        """
        if kinds and "metrics" not in kinds:
            yield from self._rows.events(*kinds)
            return
        try:
            for row in read_events(self._first.file.path):
                if not kinds or row["kind"] in kinds:
                    yield row
        except EventFileError:  # of a newer format from here on, as `problems` says
            return

    def to_pandas(self, what: str) -> Any:
        """A part of the run as a `pandas.DataFrame`. The tables of `metrics` and `hosts` have their own `to_pandas`.

        Args:
            what: `compiles`, `captures` (without their reports), `memory` (with a column for each figure, such as
                `live.params`), `checkpoints`, `legs`, `findings`, or `ledger` (seconds and share of each part).

        Raises:
            ConfigError: There is no such part.
            MissingExtraError: pandas is not installed.
        """
        return frame_of(self, what)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.status}, step {self.step:,})"

    def _repr_html_(self) -> str:
        return html_run(self)

    @cached_property
    def _facts(self) -> RunFacts:
        return facts_of_rows(self._rows)

    @property
    def _first(self) -> ProcessFile:
        """The first process of which there is anything, or else the first."""
        files = list(self._processes.values())
        return next((file for file in files if file.rows.started_at is not None), files[0])

    @property
    def _rows(self) -> RowCollector:
        rows = self._first.rows
        assert isinstance(rows, RowCollector)
        return rows

    @property
    def _config_file(self) -> Path:
        return self.path / CONFIG_FILE_NAME
