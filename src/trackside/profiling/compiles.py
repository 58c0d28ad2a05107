"""How often JAX has compiled in this process."""

import threading

import jax

_BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"
_JAXPR_TRACE = "/jax/core/compile/jaxpr_trace_duration"


class CompileCounter:
    """Counts traces and compiles; reading it costs nothing.

    JAX has no public way to remove a listener, so there is one for the life of the process: `compile_counter()`.
    """

    def __init__(self) -> None:
        self.num_events = 0
        """Traces and compiles so far, by any thread."""

    def listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        """Take note of an event. Must never raise: an error here would fail the user's own call."""
        del duration_secs, kwargs
        if event in (_BACKEND_COMPILE, _JAXPR_TRACE):
            self.num_events += 1


_counter: CompileCounter | None = None
_lock = threading.Lock()


def compile_counter() -> CompileCounter:
    """The process's counter."""
    global _counter
    with _lock:
        if _counter is None:
            _counter = CompileCounter()
            jax.monitoring.register_event_duration_secs_listener(_counter.listen)
        return _counter
