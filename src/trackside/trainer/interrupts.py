"""Signals that ask a training to stop: the step is finished first, and a state is never left half written.

Where several processes train together, all have to stop after the same step. JAX sees to that: it catches SIGTERM in
each process, tells the others, and names the step.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import jax
from jax.experimental import multihost_utils

from trackside import jax_internals

EXIT_CODE_TERMINATED = 128 + signal.SIGTERM


class Interrupts:
    """While open, Ctrl-C and SIGTERM ask for a stop after the current step. A second Ctrl-C stops at once.

    Signals can be caught by the main thread only; elsewhere nothing is changed. With several processes, Ctrl-C is left
    alone, and a SIGTERM to any of them stops all.

    Args:
        request_stop: Called when a signal comes.
    """

    def __init__(self, request_stop: Callable[[], None]):
        self.received: int | None = None
        self._request_stop = request_stop
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and jax.process_count() == 1:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def look_after_step(self) -> Callable[[int], None] | None:
        """What has to be called after every step to hear of signals; None where signals come by themselves."""
        is_served = jax.process_count() > 1 and jax_internals.config_value("jax_enable_preemption_service")
        return self._look_together if is_served else None

    def _look_together(self, step: int) -> None:
        if self.received is None and multihost_utils.reached_preemption_sync_point(step):
            self.received = signal.SIGTERM
            self._request_stop()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        self._request_stop()

    def leave(self) -> None:
        """End the process as the signal asked for, after everything was closed."""
        if self.received == signal.SIGTERM:
            raise SystemExit(EXIT_CODE_TERMINATED)
        if self.received is not None:
            raise KeyboardInterrupt
