"""The profiler: times operations by name, summarizes them and logs the summary.

A pair of `start_timer` and `end_timer`, a `with profiler.time(...)` block and a decorated host function measure the
time of the host. A decorated function that returns arrays of a device is measured until they are computed, and the call
itself is reported separately as `<operation>_dispatch`.

The hot path is in `host_timers`. What is here runs when a summary is needed.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import ConfigError
from trackside.events import EventSink
from trackside.profiling.timers.array_waiter import ArrayWaiter
from trackside.profiling.timers.host_timers import HostTimers
from trackside.profiling.timers.metric_output import MetricOutput, MetricSink
from trackside.profiling.timers.operation_summary import OperationSummary, summarise_operation, summarise_share
from trackside.profiling.timers.sampled_shares import SampledShares
from trackside.schedule import Every

MAX_WAIT_S = 10.0
"""How long a summary waits at most for arrays that are still being computed."""
DISPATCH = "_dispatch"
"""Ends the name under which the host's part of an asynchronous operation is reported."""


class TrainingProfiler(HostTimers):
    """Times operations by name, and logs what they took. Any thread may use it.

    Args:
        log_to_wandb: Whether to log to Weights & Biases too, while a run is active.
        log_every: The metrics are logged at every `log_every`-th call of `step`; -1 for never.
        enabled: Whether it measures. Can be changed at any time, by setting the attribute.
        sync: Whether wrapped functions wait for the arrays that they return, which slows the loop down.
        logger: Receives the metrics as numbers; such as a `trackside.logger.Logger`.
        events: Receives everything; such as a `trackside.events.EventWriter`.
        clock: Where times come from.

    Attributes:
        log_to_wandb, log_every, enabled, sync, logger, events: As given. All of them can be set.
        last_logged: At which step the metrics were logged last, and of which operations; None before.
        step_count: How often `step` was called since the last reset.
    """

    def __init__(
        self,
        log_to_wandb: bool = True,
        log_every: int = 100,
        *,
        enabled: bool = True,
        sync: bool = False,
        logger: MetricSink | None = None,
        events: EventSink | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ):
        super().__init__(clock, enabled)
        self.log_every = log_every
        self.log_to_wandb = log_to_wandb
        self.sync = sync
        self.logger = logger
        self.events = events
        self.step_count = 0
        self.last_logged: tuple[int, frozenset[str]] | None = None
        self.sampled = SampledShares()
        """Operations inside of jitted steps, which only captures can show."""
        self.completions = ArrayWaiter(clock)
        """Waits for the arrays that wrapped functions returned."""
        self._started_s = clock.now()
        self._output = MetricOutput()
        self.num_loss_calls = 0
        """Calls of wrapped losses that were measured where they were called."""
        self._step_operations: set[str] = set()
        """Operations that happen once per training step."""
        self._run_events: list[EventSink] = []
        """Event files of runs that are under way, the innermost last."""
        weakref.finalize(self, self.completions.stop)

    @property
    def log_every(self) -> int:
        """The metrics are logged at every `log_every`-th call of `step`; -1 for never. Can be set at any time.

        Raises:
            ConfigError: Set to something else than a positive whole number or -1.
        """
        return self._due.num_steps

    @log_every.setter
    def log_every(self, num_steps: int) -> None:
        if isinstance(num_steps, bool) or not isinstance(num_steps, int):
            raise ConfigError(f"log_every: expected a whole number of steps, or -1 for never; got {num_steps!r}")
        self._due = Every(num_steps, "log_every")

    def time_operation(self, operation_name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator that times a function: plain or async, a generator or a method.

        Args:
            operation_name: What to call it.
        """
        from trackside.profiling.timers.timed_function import profile_operation

        return profile_operation(operation_name, profiler=self)

    def step(self) -> None:
        """Mark the end of a training step. Logs the metrics at every `log_every`-th call."""
        self.step_count += 1
        if self.enabled and self._due.is_due(self.step_count):
            self.log_metrics(self.step_count)

    def get_summary(self) -> dict[str, OperationSummary]:
        """What each operation took, in seconds, by name.

        Waits for the arrays of wrapped calls, `MAX_WAIT_S` at most, so that every call so far is counted. Operations
        that have to be sampled are in it as soon as there are enough samples.
        """
        self.completions.wait(MAX_WAIT_S)
        wall_s = self._now() - self._started_s
        summary: dict[str, OperationSummary] = {}
        with self._lock:
            operations = dict(self._operations)
        for name, operation in operations.items():
            found = operation.summarise()
            if found.count:
                summary[name] = summarise_operation(found, wall_s, is_host_time=f"{name}{DISPATCH}" not in operations)
        for share in self.sampled.found():
            if share.name not in summary:
                summary[share.name] = summarise_share(share, wall_s)
        return dict(sorted(summary.items()))

    def not_sampled_yet(self) -> list[str]:
        """Operations inside of jitted steps that do not have enough samples yet."""
        measured = self.get_summary()
        return [name for name in self.sampled.awaited() if name not in measured]

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all wrapped calls so far are counted, and end a sample that is being taken.

        Args:
            timeout_s: The longest to wait for either; None for as long as it takes.

        Returns:
            Whether it was long enough.
        """
        is_complete = self.completions.wait(timeout_s)
        return self.sampled.finish(timeout_s) and is_complete

    def log_metrics(self, step: int | None = None) -> None:
        """Print what the operations took, and log it. A place that it cannot be logged to raises no error.

        Args:
            step: The step to log it at; None for the profiler's own count: the calls of `step`, or, in a loop without
                any, those of the step that is wrapped by `profile_make_step`, or else the batches of a timed loader.
        """
        summary = self.get_summary()
        at = self._steps_so_far(summary) if step is None else step
        not_sampled = [name for name in self.sampled.awaited() if name not in summary]
        self.last_logged = at, frozenset(summary)
        events = self._run_events[-1] if self.events is None and self._run_events else self.events
        self._output.log(summary, not_sampled, at, self.logger, events, self.log_to_wandb)

    def counts_steps_by(self, operation_name: str) -> None:
        """Take the calls of an operation for training steps, as long as `step` is not called."""
        self._step_operations.add(operation_name)

    def _steps_so_far(self, summary: Mapping[str, OperationSummary]) -> int:
        if self.step_count:
            return self.step_count
        return max((summary[name]["count"] for name in self._step_operations if name in summary), default=0)

    @contextmanager
    def writing_to(self, events: EventSink) -> Iterator[None]:
        """For the length of a block, log to the event file of a run, unless the profiler was given its own.

        Args:
            events: The run's event file.
        """
        self._run_events.append(events)
        try:
            yield
        finally:
            self._run_events.remove(events)

    def reset(self) -> None:
        """Forget all measurements, including calls that are still running, and count wall time and steps from now."""
        self.completions.forget()
        with self._lock:
            for operation in self._operations.values():
                operation.clear()
        self.sampled.clear()
        self.step_count, self.last_logged = 0, None
        self._started_s = self._now()


_global: TrainingProfiler | None = None
_global_lock = threading.Lock()


def get_profiler() -> TrainingProfiler:
    """The process's own profiler, which is used when no other is given."""
    global _global
    with _global_lock:
        if _global is None:
            _global = TrainingProfiler()
        return _global


def profiler_writes_to(events: EventSink) -> AbstractContextManager[None]:
    """Like `TrainingProfiler.writing_to`, for the process's own profiler."""
    return get_profiler().writing_to(events)


def log_profiling_metrics(step: int | None = None) -> None:
    """Print and log what the operations took that the process's own profiler has timed.

    Args:
        step: The step to log it at; None for the profiler's own count.
    """
    get_profiler().log_metrics(step)
