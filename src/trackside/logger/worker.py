"""Running a tool so that it can neither stop nor slow down the training."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.logger.tool import LoggerTool
from trackside.metric_columns import MetricColumns, MetricRow

LOGGER = logging.getLogger(__name__)

MAX_QUEUED = 10_000
MAX_WAIT_S = 5.0
FLUSH_TIMEOUT_S = 30.0


def build_runner(tool: LoggerTool, clock: Clock = SYSTEM_CLOCK) -> "ToolRunner":
    """What runs `tool`: a thread of its own if it wants one."""
    return ThreadedToolRunner(tool, clock=clock) if tool.threaded else ToolRunner(tool)


class ToolRunner:
    """Calls a tool on the calling thread; what it raises is reported once and goes no further.

    Args:
        tool: The tool. A tool whose `setup` fails gets no calls.

    Attributes:
        num_failed: Calls that raised.
    """

    def __init__(self, tool: LoggerTool):
        self.tool = tool
        self.name = type(tool).__name__
        self.num_failed = 0
        self._is_set_up: bool | None = None
        self._takes_rows = _overrides(tool, "log_metrics_rows", "log_metrics")
        self._takes_columns = _overrides(tool, "log_metrics_columns", "log_metrics_rows", "log_metrics")
        self.on_closed: Callable[[dict[str, Any]], None] | None = None
        """Gets what there is to say about a tool that was behind when it was closed."""

    def can_show(self, method: str) -> bool:
        """Whether the tool overrides the method of this name."""
        return getattr(type(self.tool), method) is not getattr(LoggerTool, method)

    def call(self, method: str, *args: Any) -> None:
        """Call the tool's method of this name with arguments that are the tool's to keep."""
        self._run(method, args)

    def call_with_rows(self, rows: Sequence[MetricRow], mode: str) -> None:
        """Have the tool log several rows of metrics, which are the tool's to keep."""
        self._run_rows(rows, mode)

    def call_with_columns(self, columns: MetricColumns, mode: str) -> None:
        """Have the tool log several rows with the same metrics, which are the tool's to keep."""
        self._run_columns(columns, mode)

    def flush(self) -> None:
        """Have everything logged so far brought to where it can be seen."""
        self.call("flush")

    def finalize(self, status: str) -> None:
        """Close the tool; no calls may follow."""
        self.call("finalize", status)

    def _run(self, method: str, args: tuple[Any, ...]) -> None:
        if self._is_set_up is None:
            self._is_set_up = self._guard("setup", self.tool.setup)
        if self._is_set_up:
            self._guard(method, getattr(self.tool, method), *args)

    def _run_rows(self, rows: Sequence[MetricRow], mode: str) -> None:
        if self._takes_rows:
            self._run("log_metrics_rows", (rows, mode))
        else:  # one by one: a row that a tool cannot take does not cost it the others
            for row in rows:
                self._run("log_metrics", (*row, mode))

    def _run_columns(self, columns: MetricColumns, mode: str) -> None:
        if self._takes_columns:
            self._run("log_metrics_columns", (columns, mode))
        else:
            self._run_rows(columns.rows(), mode)

    def _guard(self, doing: str, function: Callable[..., None], *args: Any) -> bool:
        try:
            function(*args)
        except Exception as error:
            self.num_failed += 1
            if self.num_failed == 1:
                LOGGER.error(
                    "The logging tool %s failed in %s: %s: %s. Training and the other tools go on; "
                    "this tool's further failures are not reported.",
                    self.name,
                    doing,
                    type(error).__name__,
                    error,
                    exc_info=error,
                )
            return False
        return True


def _overrides(tool: LoggerTool, method: str, *simpler: str) -> bool:
    """Whether a tool has its own way to log several rows at once, by a class that knows how the tool logs fewer.

    A tool that inherits from another and changes how one row is logged means all rows.
    """
    classes = type(tool).__mro__
    own, *others = (next(at for at, one in enumerate(classes) if name in vars(one)) for name in (method, *simpler))
    return classes[own] is not LoggerTool and own <= min(others)


class _Call(NamedTuple):
    """A call that waits for a tool."""

    method: str
    args: tuple[Any, ...]


class _Rows(NamedTuple):
    """Rows that wait for a tool."""

    rows: Sequence[MetricRow]
    mode: str


class _Columns(NamedTuple):
    """Rows with the same metrics that wait for a tool."""

    columns: MetricColumns
    mode: str


_Item = _Call | _Rows | _Columns | threading.Event | None
"""What is in a queue. None ends the thread; an Event is set when everything before it is done."""


class _CallQueue(queue.Queue[_Item]):
    """Calls that wait for a tool. Several rows in one call count as what they are: several."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._num_calls = 0

    def _qsize(self) -> int:
        return self._num_calls

    def _put(self, item: _Item) -> None:
        super()._put(item)
        self._num_calls += num_calls_in(item)

    def _get(self) -> _Item:
        item = super()._get()
        self._num_calls -= num_calls_in(item)
        return item


def num_calls_in(item: _Item) -> int:
    """How many calls of a tool something in its queue stands for."""
    if isinstance(item, _Columns):
        return len(item.columns.steps)
    return len(item.rows) if isinstance(item, _Rows) else 1


class ThreadedToolRunner(ToolRunner):
    """Calls a tool on a thread of its own, in order.

    When the queue is full the caller waits, `max_wait_s` in all over the run; from then on rows that find it full are
    dropped, counted and reported once.

    Args:
        tool: The tool.
        max_queued: How many calls may wait for the tool.
        max_wait_s: How long callers wait for room, in seconds, in all.
        flush_timeout_s: How long `flush` waits, in seconds.
        clock: What the waiting is measured with.

    Attributes:
        num_dropped: Calls that the tool never got.
    """

    def __init__(
        self,
        tool: LoggerTool,
        *,
        max_queued: int = MAX_QUEUED,
        max_wait_s: float = MAX_WAIT_S,
        flush_timeout_s: float = FLUSH_TIMEOUT_S,
        clock: Clock = SYSTEM_CLOCK,
    ):
        super().__init__(tool)
        self.num_dropped = 0
        self._clock = clock
        self._wait_left_s = max_wait_s
        self._flush_timeout_s = flush_timeout_s
        self._queue = _CallQueue(max_queued)
        self._thread = threading.Thread(target=self._work, name=f"trackside-{self.name}", daemon=True)
        self._thread.start()

    def call(self, method: str, *args: Any) -> None:
        """Queue a call of the tool's method; returns before it is done."""
        self._put(_Call(method, args))

    def call_with_rows(self, rows: Sequence[MetricRow], mode: str) -> None:
        """Queue several rows, which wake the tool's thread up once."""
        self._put(_Rows(rows, mode))

    def call_with_columns(self, columns: MetricColumns, mode: str) -> None:
        """Queue several rows with the same metrics, likewise."""
        self._put(_Columns(columns, mode))

    def _put(self, item: _Call | _Rows | _Columns) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            if not self._put_patiently(item):
                self._drop(num_calls_in(item))

    def flush(self) -> None:
        """Wait until the tool has done everything so far; a tool that takes too long is reported."""
        done = threading.Event()
        try:
            self._queue.put(_Call("flush", ()), timeout=self._flush_timeout_s)
            self._queue.put(done, timeout=self._flush_timeout_s)
        except queue.Full:
            pass
        else:
            if done.wait(self._flush_timeout_s):
                return
        LOGGER.warning(
            "The logging tool %s had not flushed after %g s; training continues.", self.name, self._flush_timeout_s
        )

    def finalize(self, status: str) -> None:
        """Let the tool finish what is queued and close; a tool that takes too long is left behind and reported."""
        began_s, num_waiting = self._clock.now(), self._queue.qsize()
        try:
            self._close(status)
        finally:  # also when the user loses patience
            if self.on_closed is not None and (num_waiting or self.num_dropped):
                closing_s = self._clock.now() - began_s
                self.on_closed(
                    {
                        "tool": self.name,
                        "num_waiting": num_waiting,
                        "num_dropped": self.num_dropped,
                        "closing_s": closing_s,
                    }
                )

    def _close(self, status: str) -> None:
        timeout_s = self.tool.finalize_timeout_s
        try:
            self._queue.put(_Call("finalize", (status,)), timeout=timeout_s)
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            pass
        else:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            LOGGER.error(
                "The logging tool %s did not finish within %g s; about %d of its rows may be missing.",
                self.name,
                timeout_s,
                self._queue.qsize(),
            )
        if self.num_dropped:
            LOGGER.warning(
                "The logging tool %s was too slow for %d rows, which it never got.", self.name, self.num_dropped
            )

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            elif isinstance(item, _Rows):
                self._run_rows(*item)
            elif isinstance(item, _Columns):
                self._run_columns(*item)
            else:
                self._run(*item)

    def _put_patiently(self, item: _Call | _Rows | _Columns) -> bool:
        if self._wait_left_s <= 0:
            return False
        start = self._clock.now()
        try:
            self._queue.put(item, timeout=self._wait_left_s)
        except queue.Full:
            self._wait_left_s = 0.0
            return False
        self._wait_left_s -= self._clock.now() - start
        return True

    def _drop(self, number: int) -> None:
        is_first, self.num_dropped = self.num_dropped == 0, self.num_dropped + number
        if is_first:
            LOGGER.error(
                "The logging tool %s is too slow: %d calls are waiting for it, and rows that find no room are dropped "
                "from now on. Log less often (log_every_n_steps), or do without it; the event file has every row.",
                self.name,
                self._queue.maxsize,
            )
