"""The run log: the only way to write a row of a run.

A row goes to the event file, to the tools if it is one of metrics, to the facts that the verdicts rest on, and to
whoever has subscribed. So what is said during a run, at its end, and by a reader later rests on the same rows.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import EventFileError
from trackside.events import EventWriter, NullEventWriter, read_events, to_unicode, with_unicode_names
from trackside.findings import FactCollector, RunFacts
from trackside.logger.environment import gather_environment
from trackside.logger.redact import redact
from trackside.logger.run_directory import RunDirectory
from trackside.logger.tool_fanout import ToolFanout
from trackside.metric_columns import MetricColumns, MetricRow
from trackside.run_layout import event_file_name

LOGGER = logging.getLogger(__name__)

Subscriber = Callable[[str, Mapping[str, Any]], None]
"""Gets the kind and the fields of each row."""

_opens_runs: ContextVar[bool] = ContextVar("opens_runs", default=True)


@contextlib.contextmanager
def without_opening_runs() -> Iterator[None]:
    """Run logs that are made in this block write nothing until they are attached: a look at a run leaves no trace."""
    token = _opens_runs.set(False)
    try:
        yield
    finally:
        _opens_runs.reset(token)


def opens_runs() -> bool:
    """Whether run logs that are made now may write to their runs."""
    return _opens_runs.get()


class RunLog:
    """The rows of one process of a run. While it is closed, rows reach the facts and the subscribers only.

    Args:
        path: The run's folder; None for a run that keeps nothing on disk.
        log_name: The name of the log file, without its suffix.
        build_tools: Makes the logging tools, each time the log is opened.
        process_index: Which process of the run this is. The first has the tools and writes the configuration.
        clock: Where times come from.
    """

    def __init__(
        self,
        path: Path | None,
        log_name: str,
        build_tools: Callable[[], ToolFanout],
        process_index: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ):
        self.path = path
        self.tools = ToolFanout((), clock)
        self.is_open = False
        self.is_attached = _opens_runs.get()
        """Whether the run's files are opened when there is something to write."""
        self._log_name = log_name
        self._build_tools = build_tools
        self._process_index = process_index
        self._clock = clock
        self._directory: RunDirectory | None = None
        self._events: EventWriter | NullEventWriter = NullEventWriter()
        self._facts = FactCollector()
        self._subscribers: list[Subscriber] = []
        self._config: dict[str, Any] = {}
        self._is_reported_deleted = False
        self._unwritten_config: dict[str, Any] = {}
        self._environment: dict[str, Any] | None = None
        self._extra_environment: dict[str, Any] = {}
        self.has_trained = False
        """Whether this log has a leg."""
        self.num_earlier_legs = 0
        """How many legs the run had when this log was first opened."""
        self.began_at = 0.0
        """When the first of them began, in seconds since the epoch; 0 if there was none."""
        self.earlier_status = ""
        """How the last of them ended; empty if there was none, or it did not say."""

    # --- opening and closing ------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """From now on, open the run's files when there is something to write, also if it was made not to.

        Training does this by itself. Call it to log the evaluation of a loaded model to the run that it came from.
        """
        self.is_attached = True

    def open(self) -> None:
        """Open the files and start the tools, unless that is done or the log is not attached to them.

        Raises:
            ConfigError: The folder cannot be written to, or a tool cannot work as configured.
        """
        if self.is_open or not self.is_attached:
            return
        directory = RunDirectory(self.path, self._log_name, self._process_index, self._clock)
        try:
            self.tools = self._build_tools()
            self.tools.report_closing_to(lambda report: self.write("logging_tool", **report))
        except BaseException:
            directory.close()
            raise
        self._directory, self._events, self.is_open = directory, directory.events, True
        self._begin(directory.held_a_run)

    def _begin(self, held_a_run: bool) -> None:
        if self.path is not None:
            if self._environment is None:
                self._environment = {**gather_environment(self._process_index), **self._extra_environment}
                if held_a_run:
                    self._recall(self.path / event_file_name(self._process_index))
            self.write("environment", **self._environment)
        if self._config:
            self.tools.log_config(self._config)

    def _recall(self, path: Path) -> None:
        """Take in what earlier legs of the run have written."""
        has_metrics = False
        try:
            for row in read_events(path, skips_step_metrics=True):
                self._facts.add(row)
                has_metrics = has_metrics or row["kind"] == "metrics"
                if row["kind"] == "leg":
                    self.num_earlier_legs, self.earlier_status = self.num_earlier_legs + 1, ""
                    self.began_at = self.began_at or float(row["t"])
                elif row["kind"] == "status":
                    self.earlier_status = str(row.get("status") or "")
        except EventFileError as error:
            LOGGER.warning("the verdicts are of this leg only: %s", error)
        if has_metrics and not self.num_earlier_legs:  # nobody's training, whose trainer would know what it does
            LOGGER.warning("%s holds a log already; this one is appended to its files", self.path)

    def close_tools(self, status: str) -> None:
        """Close the tools before the files, so that what is said last can include how long that took.

        Args:
            status: As for `close`.
        """
        self.tools.finalize(status or "error")

    def close(self, status: str, step: int, epoch: int) -> None:
        """Close tools and files, with a last row. Closing it again does nothing.

        A run that others have trained, and this process has not, keeps the status that it had.

        Args:
            status: How the training ended: `success`, or another word for what went wrong; empty if it never began.
            step: The last step.
            epoch: Its epoch.
        """
        if not self.is_open:
            return
        self.is_open = False
        try:
            self.close_tools(status)
        finally:  # also when the user loses patience
            if status and (self.has_trained or not self.num_earlier_legs):
                self.write("status", status=status, step=step, epoch=epoch)
            self._events = NullEventWriter()
            assert self._directory is not None
            self._directory.close()

    def flush(self) -> None:
        """Wait until the tools have what was logged so far. The event file always has it."""
        self.tools.flush()

    # --- rows ---------------------------------------------------------------------------------------------------------

    def write(self, kind: str, **fields: Any) -> None:
        """Write a row.

        Args:
            kind: What the row is about, such as `compile` or `checkpoint`.
            **fields: What it says: anything JSON can hold.
        """
        if kind == "leg":
            self.has_trained = True
        self._write_to(self._events, kind, fields)

    def _write_to(self, events: EventWriter | NullEventWriter, kind: str, fields: dict[str, Any]) -> None:
        events.write(kind, **fields)
        self._report_if_deleted()
        self._facts.add({"kind": kind, **fields})
        for subscriber in self._subscribers:
            subscriber(kind, fields)

    def append(self, kind: str, **fields: Any) -> None:
        """Write a row, also to the event file of a training that is over and whose files are closed.

        The event file is opened for this row alone; no tool hears of it. Of a run that this log has not trained,
        nothing is written.

        Args:
            kind: As for `write`.
            **fields: As for `write`.
        """
        file = None if self.path is None else self.path / event_file_name(self._process_index)
        if self.is_open or not self.has_trained or file is None or not file.is_file():  # moved or deleted since
            self.write(kind, **fields)
            return
        events = NullEventWriter()
        try:
            events = EventWriter(file, self._clock)  # of this call alone: a thread may add the row of its checkpoint
        except OSError as error:
            LOGGER.warning("a row %r could not be added to %s: %s", kind, file, error)
        try:
            self._write_to(events, kind, fields)
        finally:
            events.close()

    def write_metrics(self, values: dict[str, float], step: int, epoch: int, mode: str) -> None:
        """Write a row of metrics.

        Args:
            values: The numbers by name.
            step: The step that they belong to.
            epoch: The epoch that they belong to.
            mode: What they were measured in, such as `train` or `val`.
        """
        try:
            self._events.write_metrics(values, step, epoch, mode)
        except UnicodeEncodeError:
            values, mode = with_unicode_names(values), to_unicode(mode)
            self._events.write_metrics(values, step, epoch, mode)
        self._pass_on([(values, step, epoch)], mode)

    def _pass_on(self, rows: Sequence[MetricRow], mode: str) -> None:
        """Give rows of metrics, which are in the event file, to the tools and to whom they concern."""
        if len(rows) == 1:
            self.tools.log_metrics(*rows[0], mode)
        elif self.tools:
            self.tools.log_metrics_rows(rows, mode)
        if self._concerns_others(mode):
            self._tell(rows, mode)

    def _tell(self, rows: Sequence[MetricRow], mode: str) -> None:
        """Tell those whom they concern, other than the tools, of rows of metrics."""
        self._report_if_deleted()
        for values, step, epoch in rows:
            fields = {"step": step, "epoch": epoch, "mode": mode, "values": values}
            self._facts.add({"kind": "metrics", **fields})
            for subscriber in self._subscribers:
                subscriber("metrics", fields)

    def write_metrics_rows(self, rows: Sequence[MetricRow], mode: str) -> None:
        """Write several rows of metrics at once.

        Args:
            rows: The numbers by name, the step and the epoch of each.
            mode: As for `write_metrics`.
        """
        try:
            self._events.write_metrics_rows(rows, mode)
        except UnicodeEncodeError:
            rows = [(with_unicode_names(values), step, epoch) for values, step, epoch in rows]
            mode = to_unicode(mode)
            self._events.write_metrics_rows(rows, mode)
        self._pass_on(rows, mode)

    def write_metrics_columns(self, columns: MetricColumns, mode: str) -> None:
        """Write several rows with the same metrics at once.

        Args:
            columns: The rows.
            mode: As for `write_metrics`.
        """
        try:
            self._events.write_metrics_columns(columns, mode)
        except UnicodeEncodeError:
            self.write_metrics_rows(columns.rows(), mode)
            return
        if self.tools:
            self.tools.log_metrics_columns(columns, mode)
        if self._concerns_others(mode):
            self._tell(columns.rows(), mode)

    def _concerns_others(self, mode: str) -> bool:
        """Whether rows of metrics concern others than the tools: the facts need no others, and steps are many."""
        return bool(self._subscribers or mode == "train_epoch")

    def _report_if_deleted(self) -> None:
        if self._events.is_deleted and not self._is_reported_deleted:
            self._is_reported_deleted = True
            LOGGER.error("%s was deleted while the run writes to it: training continues, its log is lost", self.path)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the configuration, to `config.json` and the tools too.

        Args:
            config: Plain values without secrets. Several calls add up, by their top-level keys.
        """
        self._config.update(config)
        self._unwritten_config.update(config)
        if self.is_open:
            self.write_config_so_far()

    def write_config_so_far(self) -> None:
        """Write what was given to `write_config` while the log was not attached to the run's files."""
        config, self._unwritten_config = self._unwritten_config, {}
        if not config:
            return
        self.write("config", config=config)
        if self._process_index == 0 and self._directory is not None:
            try:
                self._directory.write_config(self._config)
            except OSError as error:
                LOGGER.error("the configuration could not be written to %s: %s", self.path, error)
        self.tools.log_config(self._config)

    def write_environment(self, extra: Mapping[str, Any]) -> None:
        """Add to what the run's environment rows say; a reader merges them.

        Args:
            extra: Fields by name, such as `devices`; secrets are left out.
        """
        extra = redact(extra)
        self.write("environment", **extra)
        self._extra_environment.update(extra)
        if self._environment is not None:
            self._environment.update(extra)

    # --- readers ------------------------------------------------------------------------------------------------------

    def facts(self) -> RunFacts:
        """What the rows so far say, those of earlier legs included."""
        return self._facts.facts()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Hear of each row as it is written, on the thread that writes it.

        Args:
            subscriber: Called with the kind and the fields of a row.

        Returns:
            Ends the subscription.
        """
        self._subscribers = [*self._subscribers, subscriber]

        def unsubscribe() -> None:
            self._subscribers = [one for one in self._subscribers if one is not subscriber]

        return unsubscribe
