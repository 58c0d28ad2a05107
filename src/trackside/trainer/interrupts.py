"""Signals that ask a training to stop: the step is finished first, and a state is never left half written."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import jax

EXIT_CODE_TERMINATED = 128 + signal.SIGTERM


class Interrupts:
    """While open, Ctrl-C and SIGTERM ask for a stop after the current step. A second Ctrl-C stops at once.

    Signals can be caught by the main thread only; elsewhere, and where several processes leave SIGTERM to JAX's own
    handler, nothing is changed.

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
