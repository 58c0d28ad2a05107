"""Which compiles JAX has made in this process, by any thread, and what they cost.

`jax.monitoring` reports, on the thread that compiles, when each phase begins and ends: tracing, lowering, compiling. A
phase may be missing (an earlier trace is used again), may lead to nothing (`jax.eval_shape` only traces), and may have
whole compiles inside (`jax.ensure_compile_time_eval`). Here the phases are assembled into one `CompileEvent` per
compile.
"""

import contextlib
import re
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax

from trackside import jax_internals
from trackside.clock import SYSTEM_CLOCK, Clock

_TRACE = "/jax/core/compile/jaxpr_trace_duration"
_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILE = "/jax/core/compile/backend_compile_duration"
_PHASES = (_TRACE, _LOWER, _COMPILE)
_CACHE_ASKED = "/jax/compilation_cache/compile_requests_use_cache"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"

MAX_EVENTS = 2048
"""How many compiles are remembered; older ones are only counted."""
_MAX_LOWERED = 64  # functions that a thread has lowered, but not compiled yet

CacheResult = Literal["hit", "miss", "off"]


@dataclass(slots=True, eq=False)
class CompileEvent:
    """One compile."""

    number: int
    """Index of this compile in the process, from 1."""
    function: str
    """The name that JAX knows the function by."""
    trace_s: float
    """Seconds of the trace that it was made from, less those of compiles inside; 0 where an old trace served."""
    lower_s: float
    """Seconds of lowering; 0 where it was lowered before, or by another thread."""
    compile_s: float
    """Seconds that XLA took, or the reading from the persistent cache."""
    cache: CacheResult
    """Whether the persistent compilation cache had it; `off` if there is none."""
    is_operation: bool
    """Whether it is an operation of JAX itself that ran outside of any jitted function, such as `jnp.ones`."""
    is_nested: bool
    """Whether it was made while another function was being traced or lowered."""
    thread_id: int
    thread_name: str
    timestamp: float
    """When it ended, in seconds since the epoch."""
    num_events: int
    """What the counter read when it ended."""
    label: str = ""
    """What to call it instead of the function, where that says more to people."""
    explanation: str = ""
    """What changed since the function's compile before, where a sentinel has found out."""

    @property
    def total_s(self) -> float:
        """Seconds of all phases."""
        return self.trace_s + self.lower_s + self.compile_s


@dataclass(slots=True)
class _Phase:
    """A phase that has begun."""

    kind: str
    function: str
    is_nested: bool
    trace_s: float = 0.0
    lower_s: float = 0.0
    nested_s: float = 0.0
    """Seconds of other phases that began and ended inside."""
    is_operation: bool = False
    asked_cache: bool = False
    hit_cache: bool = False


class CompileBook(Protocol):
    """Who keeps account of the time of a thread."""

    def begin_compiling(self) -> None:
        """Something begins to be traced or compiled."""
        ...

    def end_compiling(self) -> None:
        """It is over, with everything inside it."""
        ...


class _ThreadPhases(threading.local):
    """What a thread is doing."""

    def __init__(self) -> None:
        self.open: list[_Phase] = []
        self.books: list[CompileBook] = []
        """Who hears when the thread begins and ends to compile."""
        self.traced: tuple[str, float] | None = None
        """Function and seconds of the last traces, until something is lowered: a trace may lead to nothing."""
        self.labels: dict[str, str] = {}
        """What to call the next compile of a function."""
        self.lowered: dict[str, tuple[float, float]] = {}
        """Seconds of trace and lowering by function: with `lower()` and `compile()` others may come in between."""


class CompileCounter:
    """Counts traces and compiles, and remembers the last `MAX_EVENTS` compiles. Reading `num_events` costs nothing.

    It must not miss a compile, so there is one for the life of the process: `compile_counter()`.

    Args:
        clock: Where the events' timestamps come from.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.num_events = 0
        """Traces and compiles so far, by any thread."""
        self.num_compiles = 0
        """Compiles so far, by any thread; also the number of the last one."""
        self._timestamp = clock.timestamp
        self._events: deque[CompileEvent] = deque(maxlen=MAX_EVENTS)
        self._phases = _ThreadPhases()
        # Reentrant: a signal handler may compile while its thread is in here.
        self._lock = threading.RLock()

    def listen(self) -> None:
        """Register for the compiles from now on."""
        jax.monitoring.register_scalar_listener(self._on_begin)
        jax.monitoring.register_event_listener(self._on_cache)
        jax.monitoring.register_event_duration_secs_listener(self._on_end)

    def events_after(self, number: int) -> list[CompileEvent]:
        """The remembered compiles after the one with this number."""
        if self.num_compiles == number:
            return []
        with self._lock:
            return list(reversed(list(_newer_than(number, self._events))))

    def events_since(self, num_events: int) -> list[CompileEvent]:
        """The remembered compiles of this thread that ended after `num_events` had this value."""
        thread_id = threading.get_ident()
        with self._lock:
            return [one for one in self._events if one.num_events > num_events and one.thread_id == thread_id]

    @contextlib.contextmanager
    def booked_by(self, book: CompileBook) -> Iterator[None]:
        """For the length of a block, have a ledger hear when this thread begins and ends to trace or compile.

        Args:
            book: The ledger of this thread.
        """
        books = self._phases.books
        books.append(book)
        try:
            yield
        finally:
            books.remove(book)

    def hand_over(self, function: str) -> tuple[float, float]:
        """Give away what this thread has spent on a function that another thread is to compile.

        Args:
            function: Its name.

        Returns:
            Seconds of tracing and lowering, for `take_over`.
        """
        return self._phases.lowered.pop(function, (0.0, 0.0))

    def take_over(self, function: str, spent: tuple[float, float], label: str) -> None:
        """Take what another thread has spent on a function that this one is about to compile.

        Args:
            function: Its name.
            spent: What `hand_over` gave.
            label: What to call the compile, unless a thread adopts it.
        """
        self._phases.lowered[function] = spent
        self._phases.labels[function] = label

    def adopt(self, event: CompileEvent) -> None:
        """Let a compile of another thread count as one that this thread has just made, since it waited for it."""
        with self._lock:
            self.num_events += 1
            event.num_events, event.thread_id = self.num_events, threading.get_ident()

    # The listeners must never raise: an error here would fail the user's own call.

    def _on_begin(self, event: str, value: float, **kwargs: Any) -> None:
        del value
        if event in _PHASES:
            with contextlib.suppress(Exception):
                self._begin(event, _function_name(kwargs))

    def _on_cache(self, event: str, **kwargs: Any) -> None:
        del kwargs
        if event in (_CACHE_ASKED, _CACHE_HIT) and (phases := self._phases.open):
            phases[-1].asked_cache = True
            phases[-1].hit_cache = event == _CACHE_HIT

    def _on_end(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        if event in _PHASES:
            with contextlib.suppress(Exception):
                self._end(event, _function_name(kwargs), duration_secs)
            if event != _LOWER:
                with self._lock:
                    self.num_events += 1

    def _begin(self, kind: str, function: str) -> None:
        thread = self._phases
        if not thread.open:
            for book in thread.books:
                book.begin_compiling()
        phase = _Phase(kind, function, is_nested=bool(thread.open))
        if kind == _LOWER:
            traced, thread.traced = thread.traced, None
            phase.trace_s = traced[1] if traced is not None and traced[0] == function else 0.0
        elif kind == _COMPILE:
            phase.trace_s, phase.lower_s = thread.lowered.pop(function, (0.0, 0.0))
            phase.is_operation = jax_internals.is_compiling_own_operation()
        thread.open.append(phase)

    def _end(self, kind: str, function: str, duration_s: float) -> None:
        thread = self._phases
        phase = _close_phase(thread.open, kind, function)
        if not thread.open:
            for book in thread.books:
                book.end_compiling()
        own_s = max(duration_s - phase.nested_s, 0.0)
        if thread.open:
            thread.open[-1].nested_s += duration_s
        if kind == _TRACE:
            before_s = thread.traced[1] if thread.traced is not None and thread.traced[0] == function else 0.0
            thread.traced = (function, before_s + own_s)
        elif kind == _LOWER:
            thread.lowered[function] = (phase.trace_s, own_s)
            while len(thread.lowered) > _MAX_LOWERED:
                del thread.lowered[next(iter(thread.lowered))]
        else:
            self._add(phase, own_s)

    def _add(self, phase: _Phase, compile_s: float) -> None:
        thread, cache = threading.current_thread(), _cache_result(phase)
        with self._lock:
            self.num_compiles += 1
            event = CompileEvent(
                number=self.num_compiles,
                function=phase.function,
                trace_s=phase.trace_s,
                lower_s=phase.lower_s,
                compile_s=compile_s,
                cache=cache,
                is_operation=phase.is_operation,
                is_nested=phase.is_nested,
                thread_id=threading.get_ident(),
                thread_name=thread.name,
                timestamp=self._timestamp(),
                num_events=self.num_events + 1,  # its own end is counted next
                label=self._phases.labels.pop(phase.function, ""),
            )
            self._events.append(event)


def _newer_than(number: int, events: deque[CompileEvent]) -> Iterator[CompileEvent]:
    """The events after the one with this number, newest first: few of many."""
    for event in reversed(events):
        if event.number <= number:
            return
        yield event


def _close_phase(phases: list[_Phase], kind: str, function: str) -> _Phase:
    """Remove the phase that ended, with those inside that never did; a new one if its begin was missed."""
    for index in range(len(phases) - 1, -1, -1):
        if phases[index].kind == kind and phases[index].function == function:
            phase = phases[index]
            del phases[index:]
            return phase
    return _Phase(kind, function, is_nested=bool(phases))


def _function_name(kwargs: dict[str, Any]) -> str:
    """`f` for `f` and for `jit(f)`: traces carry the one, what follows the other."""
    name = str(kwargs.get("fun_name", ""))
    wrapped = re.fullmatch(r"\w+\((.*)\)", name)
    return wrapped[1] if wrapped else name


def _cache_result(phase: _Phase) -> CacheResult:
    if phase.hit_cache:
        return "hit"
    # JAX reports a request to the cache even if none is set up.
    has_cache = jax_internals.keeps_programs() or bool(jax_internals.config_value("jax_compilation_cache_dir"))
    return "miss" if phase.asked_cache and has_cache else "off"


_counter: CompileCounter | None = None
_lock = threading.Lock()


def compile_counter() -> CompileCounter:
    """The process's counter, which has seen all compiles since the first call."""
    global _counter
    with _lock:
        if _counter is None:
            _counter = CompileCounter()
            _counter.listen()
        return _counter
