"""The run log: the only way to write a row of a run.

A row goes to the event file, to the tools if it is one of metrics, to the facts that the verdicts rest on, and to
whoever has subscribed. So what is said during a run, at its end, and by a reader later rests on the same rows.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import EventFileError
from trackside.events import EventWriter, NullEventWriter, read_events
from trackside.findings import FactCollector, RunFacts
from trackside.logger.environment import gather_environment
from trackside.logger.redact import redact
from trackside.logger.run_directory import RunDirectory
from trackside.logger.tool_fanout import ToolFanout
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
        self.continues_a_run = False
        """Whether the folder held a run when it was opened first."""
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
        self._environment: dict[str, Any] | None = None

    # --- opening and closing ------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """From now on, open the run's files when there is something to write, also if it was made not to."""
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
        except BaseException:
            directory.close()
            raise
        self._directory, self._events, self.is_open = directory, directory.events, True
        self._begin(directory.held_a_run)

    def _begin(self, held_a_run: bool) -> None:
        if self.path is not None:
            if self._environment is None:
                self._environment = gather_environment(self._process_index)
                self.continues_a_run = held_a_run
                if held_a_run:
                    LOGGER.warning("%s holds a run already; this one is appended to its files", self.path)
                    self._recall(self.path / event_file_name(self._process_index))
            self.write("environment", **self._environment)
        if self._config:
            self.tools.log_config(self._config)

    def _recall(self, path: Path) -> None:
        """Take in what earlier legs of the run have written."""
        try:
            for row in read_events(path, skips_step_metrics=True):
                self._facts.add(row)
        except EventFileError as error:
            LOGGER.warning("the verdicts are of this leg only: %s", error)

    def close(self, status: str | None, step: int, epoch: int) -> None:
        """Close tools and files, with a last row. Closing it again does nothing.

        Args:
            status: How the training ended: `success`, or another word for what went wrong. None for one that never
                began and so changes nothing about the run: no row is written.
            step: The last step.
            epoch: Its epoch.
        """
        if not self.is_open:
            return
        self.is_open = False
        try:
            self.tools.finalize("error" if status is None else status)
        finally:  # also when the user loses patience
            if status is not None:
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
        self._events.write(kind, **fields)
        self._report_if_deleted()
        self._facts.add({"kind": kind, **fields})
        for subscriber in self._subscribers:
            subscriber(kind, fields)

    def write_metrics(self, values: dict[str, float], step: int, epoch: int, mode: str) -> None:
        """Write a row of metrics.

        Args:
            values: The numbers by name.
            step: The step that they belong to.
            epoch: The epoch that they belong to.
            mode: What they were measured in, such as `train` or `val`.
        """
        self._events.write_metrics(values, step, epoch, mode)
        if self.tools:
            self.tools.log_metrics(values, step, epoch, mode)
        if mode == "train_epoch" or self._subscribers:  # the facts need no others, and steps are many
            self._report_if_deleted()
            fields = {"step": step, "epoch": epoch, "mode": mode, "values": values}
            self._facts.add({"kind": "metrics", **fields})
            for subscriber in self._subscribers:
                subscriber("metrics", fields)

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
        self.write("config", config=dict(config))
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
