"""The recompile sentinel: every compile becomes a row of the run, with its cost and the argument that caused it.

It is always on. As long as nothing compiles it costs a comparison of two integers per call; the arguments are looked at
only after a call that has compiled.
"""

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import jax
from jax.core import Tracer

from trackside.errors import ConfigError, RecompileError
from trackside.events import EventSink
from trackside.profiling.compiles import MAX_EVENTS, CompileEvent, compile_counter
from trackside.profiling.signature import (
    Change,
    Signature,
    diff_to_nearest,
    jitted_name,
    signature_of,
    suggest,
    summarize,
)
from trackside.text import seconds

LOGGER = logging.getLogger(__name__)

OnTooMany = Literal["warn", "error"]

_MAX_SIGNATURES = 16  # per function; a new one is compared with these
_MAX_WRITTEN_CHANGES = 20


@dataclass(slots=True)
class _Watch:
    """What is known of a watched function."""

    name: str
    function: Callable | None
    compiled_name: str | None
    """The name of its compiles, where that is known."""
    num_compiles: int = 0
    has_run_compiled: bool = False
    """Whether it was compiled already when the sentinel first saw it."""
    signatures: deque[Signature] = field(default_factory=lambda: deque(maxlen=_MAX_SIGNATURES))

    @property
    def num_recompiles(self) -> int:
        """Compiles beyond the first."""
        return max(self.num_compiles - (not self.has_run_compiled), 0)

    def own_events(self, events: list[CompileEvent]) -> list[CompileEvent]:
        """Those of the compiles during a call that are the function's.

        What is not jitted itself owns all of them, but for single operations: each new shape compiles those.
        """
        if self.compiled_name is None:
            return [event for event in events if not event.is_operation]
        return [event for event in events if event.function == self.compiled_name]


class RecompileSentinel:
    """Writes a row for each compile of the process, and explains those of the functions that it watches.

    A function is known by its name and its code: one that is jitted again and again under the same name counts as
    compiling again, which is what it does. Compiles from before the sentinel was made are ignored.

    Args:
        events: Where the rows go.
        max_recompiles: How often a watched function may compile beyond the first time; -1 for no limit.
        on_too_many: What happens then: a warning in the log, or a `RecompileError` from the call.
    """

    def __init__(self, events: EventSink, max_recompiles: int = -1, on_too_many: OnTooMany = "warn"):
        if max_recompiles < -1:
            raise ConfigError(
                f"max_recompiles: expected a number of recompiles, or -1 for no limit; got {max_recompiles}"
            )
        if on_too_many not in get_args(OnTooMany):
            raise ConfigError(f"on_too_many: expected 'warn' or 'error'; got {on_too_many!r}")
        self.max_recompiles = max_recompiles
        self.on_too_many = on_too_many
        self.step: int | None = None
        """The step that rows carry where none is given."""
        self._events = events
        self._counter = compile_counter()
        self._last_number = self._counter.num_compiles
        self._pending: deque[CompileEvent] = deque(maxlen=MAX_EVENTS)
        self._watches: dict[tuple[str, Any], _Watch] = {}
        self._lock = threading.RLock()

    @property
    def num_recompiles(self) -> dict[str, int]:
        """How often the watched functions have compiled beyond the first time, by name."""
        with self._lock:
            counts: dict[str, int] = {}
            for watch in self._watches.values():
                counts[watch.name] = counts.get(watch.name, 0) + watch.num_recompiles
            return counts

    def watch(self, function: Callable, name: str | None = None) -> Callable:
        """The function, with its compiles explained. A call costs one Python call and two comparisons more.

        What else a jitted function has (`lower`, `clear_cache` and so on) is reached as before.

        Args:
            function: A jitted function, or one that calls such.
            name: What rows and log lines call it; its own name by default.
        """
        shown_name: str = name or jitted_name(function) or getattr(function, "__name__", type(function).__name__)
        counter, account, is_new = self._counter, self._account, True

        # A plain function: an object with `__call__` and `__getattr__` would cost twice as much.
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_new
            num_events = counter.num_events
            result = function(*args, **kwargs) if kwargs else function(*args)  # a dict less to build
            if is_new or counter.num_events != num_events:
                is_new = account(shown_name, function, args, kwargs, num_events, is_new)
            return result

        carry_over_methods(function, watched)
        return watched

    def named(self, function: Callable, name: str) -> Callable:
        """The function, with its compiles under another name. They are not explained.

        Args:
            function: A jitted function that is called now and then.
            name: What rows and log lines call it.
        """
        compiled_name = jitted_name(function)

        def called(*args: Any, **kwargs: Any) -> Any:
            number = self._counter.num_compiles
            result = function(*args, **kwargs)
            own = [
                event
                for event in self._counter.events_after(number)
                if event.function == compiled_name and event.thread_id == threading.get_ident()
            ]
            for event in own:
                event.label = name
            if own:
                LOGGER.info("%s compiled %s", name, _cost(own))
            return result

        return called

    def remember(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        function: Callable | None = None,
    ) -> None:
        """Remember arguments that a function is compiled for already, to compare with when it compiles again.

        The arguments are those of `compiled`.
        """
        with self._lock:
            watch = self._watch_of(name, function)
            watch.has_run_compiled = watch.has_run_compiled or not watch.num_compiles
            if (signature := _signature_or_none(args, kwargs, function)) is not None:
                watch.signatures.append(signature)

    def compiled(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        step: int | None = None,
        function: Callable | None = None,
        since: int = 0,
    ) -> bool:
        """Account for the compiles of a call, after the call; for callers that compare `num_events` themselves.

        Args:
            name: What rows and log lines call the function.
            args: Its arguments; they may be arrays that the call has consumed.
            kwargs: Its keyword arguments.
            step: The step that the call made.
            function: What was called, for the names of its arguments and to distinguish its compiles from others.
            since: What `num_events` read before the call.

        Returns:
            Whether the function itself has compiled.

        Raises:
            RecompileError: It has compiled too often, and `on_too_many` is `error`.
        """
        step = self.step if step is None else step
        with self._lock:
            watch = self._watch_of(name, function)
            events = self._take_of_thread()
            own = watch.own_events([event for event in events if event.num_events > since])
            self._write_plain([event for event in events if event not in own], step)
            if not own:
                return False
            changes = self._explain(watch, args, kwargs)
        self._report(watch, own, changes, step)
        return True

    def flush(self, step: int | None = None) -> None:
        """Write the rows of compiles that no watched call has accounted for. Costs nothing if there are none.

        Args:
            step: The last step, which the rows and those of later calls carry.
        """
        self.step = self.step if step is None else step
        if self._last_number == self._counter.num_compiles and not self._pending:
            return
        with self._lock:
            self._pull()
            events = list(self._pending)
            self._pending.clear()
            self._write_plain(events, self.step)

    def _account(
        self, name: str, function: Callable, args: tuple, kwargs: dict[str, Any], num_events: int, is_new: bool
    ) -> bool:
        """Account for a call of a watched function.

        Returns:
            Whether the function is still to be met.
        """
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return is_new  # part of another function, which is the one that compiles
        if not self.compiled(name, args, kwargs, function=function, since=num_events) and is_new:
            self.remember(name, args, kwargs, function)
        return False

    def _watch_of(self, name: str, function: Callable | None) -> _Watch:
        key = (name, _code_of(function))
        if key not in self._watches:
            self._watches[key] = _Watch(name, function, jitted_name(function))
        return self._watches[key]

    def _pull(self) -> None:
        """Fetch what is new."""
        events = self._counter.events_after(self._last_number)
        if not events:
            return
        num_lost = events[-1].number - self._last_number - len(events)
        if num_lost:
            LOGGER.warning("%d compiles came too fast to be written as rows; totals include them", num_lost)
        self._last_number = events[-1].number
        self._pending.extend(events)

    def _take_of_thread(self) -> list[CompileEvent]:
        self._pull()
        thread_id = threading.get_ident()
        taken = [event for event in self._pending if event.thread_id == thread_id]
        others = [event for event in self._pending if event.thread_id != thread_id]
        self._pending.clear()
        self._pending.extend(others)
        return taken

    def _explain(self, watch: _Watch, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> list[Change]:
        watch.num_compiles += 1
        signature = _signature_or_none(args, kwargs, watch.function)
        if signature is None:
            return []
        changes = diff_to_nearest(watch.signatures, signature) if watch.signatures else []
        watch.signatures.append(signature)
        return changes

    def _report(self, watch: _Watch, own: list[CompileEvent], changes: list[Change], step: int | None) -> None:
        """Write the rows of a function's compiles, log one line, and see whether there are too many."""
        num_recompiles = watch.num_recompiles
        suggestion = suggest(changes) if num_recompiles else ""
        reason = f"{summarize(changes)}. {suggestion}" if changes else suggestion
        for event in own:
            event.explanation = reason or event.explanation
            self._write(event, watch.name, step, changes, suggestion, num_recompiles)
        is_too_many = 0 <= self.max_recompiles < num_recompiles
        limit = f"more than max_recompiles={self.max_recompiles}" if is_too_many else ""
        if not num_recompiles:
            LOGGER.info("%s compiled%s %s", watch.name, _at(step), _cost(own))
            return
        count = f"recompile {num_recompiles}" + (f", {limit}" if limit else "")
        LOGGER.warning("%s compiled again%s %s, %s: %s", watch.name, _at(step), _cost(own), count, reason)
        if is_too_many and self.on_too_many == "error":
            raise RecompileError(
                f"{watch.name}: compiled again{_at(step)}, {num_recompiles} times in all, {limit}: {reason}; or raise "
                "max_recompiles"
            )

    def _write_plain(self, events: list[CompileEvent], step: int | None) -> None:
        for event in events:
            self._write(event, event.label or event.function, step, [], "", 0)

    def _write(
        self,
        event: CompileEvent,
        name: str,
        step: int | None,
        changes: list[Change],
        suggestion: str,
        num_recompiles: int,
    ) -> None:
        written = changes[:_MAX_WRITTEN_CHANGES]
        self._events.write(
            "compile",
            t=event.timestamp,
            function=name,
            step=step,
            trace_s=event.trace_s,
            lower_s=event.lower_s,
            compile_s=event.compile_s,
            cache=event.cache,
            changes=[
                {"path": change.path, "kind": change.kind, "old": change.old, "new": change.new} for change in written
            ],
            num_changes=len(changes),
            suggestion=suggestion,
            num_recompiles=num_recompiles,
            is_operation=event.is_operation,
            thread=event.thread_name,
        )


def _signature_or_none(
    args: Sequence[Any], kwargs: Mapping[str, Any] | None, function: Callable | None
) -> Signature | None:
    try:
        return signature_of(args, kwargs, function)
    except Exception:  # a user's own containers may raise anything, and training must continue
        LOGGER.debug("the arguments of %s could not be described", function, exc_info=True)
        return None


def carry_over_methods(function: Callable, wrapper: Callable) -> None:
    """Make the methods of a jitted function reachable from a function around it."""
    if hasattr(function, "lower"):
        for name in dir(function):
            if not (name.startswith("__") or hasattr(wrapper, name)):
                setattr(wrapper, name, getattr(function, name))


def _code_of(function: Any) -> Any:
    """What stays the same when a function is made and jitted again."""
    while (inner := getattr(function, "__wrapped__", None) or getattr(function, "func", None)) is not None:
        function = inner
    return getattr(function, "__code__", id(function))


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step}"


def _cost(events: list[CompileEvent]) -> str:
    trace_s, lower_s, compile_s = (
        sum(getattr(event, part) for event in events) for part in ("trace_s", "lower_s", "compile_s")
    )
    caches = "/".join(sorted({event.cache for event in events}))
    return (
        f"in {seconds(trace_s + lower_s + compile_s)} "
        f"(trace {seconds(trace_s)}, lower {seconds(lower_s)}, compile {seconds(compile_s)}, cache {caches})"
    )
