"""What asks a training to stop: signals, callbacks, the training itself. The step that is under way is finished first.

Where several processes train together, all have to stop after the same step. JAX sees to that: it catches SIGTERM in
each process, tells the others, and names the step.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

from jax.experimental import multihost_utils

from trackside.jax_internals import config_value
from trackside.processes import Processes

EXIT_CODE_TERMINATED = 128 + signal.SIGTERM


class StopRequest:
    """Whether a training is to stop before its goal, and as what it ends then."""

    def __init__(self) -> None:
        self.status = ""
        """Empty while nothing asks; otherwise how the training ends, such as `nan` or `interrupted`."""

    def ask(self, status: str) -> None:
        """Ask for a stop after the current step. The first who asks decides how the training ends."""
        self.status = self.status or status


class Interrupts:
    """While open, Ctrl-C and SIGTERM ask for a stop after the current step; they are obeyed when all is saved.

    A second Ctrl-C stops at once. Further SIGTERMs are ignored: schedulers repeat them, and the first is being obeyed.
    Signals can be caught by the main thread only; elsewhere nothing is changed. With several processes, Ctrl-C is left
    alone, and a SIGTERM to any of them stops all.

    Args:
        stop: Who is asked when a signal comes.
        processes: The processes that train together.
    """

    def __init__(self, stop: StopRequest, processes: Processes):
        self.received: int | None = None
        self.looks_together = processes.are_several and bool(config_value("jax_enable_preemption_service"))
        """Whether `look` has to be called after every step, since signals reach only one of several processes."""
        self._are_caught = not processes.are_several
        self._stop = stop
        self._previous: dict[int, Any] = {}
        self._is_impatient = False
        """Whether Ctrl-C was pressed, so that pressing it once more means now."""

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and self._are_caught:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """For the length of a block, signals have the effect that they had before."""
        was_caught = bool(self._previous)
        self.__exit__()
        try:
            yield
        finally:
            if was_caught:
                self.__enter__()

    def look(self, step: int) -> None:
        """See, together with the other processes, whether all are to stop after this step."""
        if self.received is None and multihost_utils.reached_preemption_sync_point(step):
            self.received = signal.SIGTERM
            self._stop.ask("interrupted")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT:
            if self._is_impatient:
                raise KeyboardInterrupt
            self._is_impatient = True
            _tell("finishing the step; press Ctrl-C again to quit now")
        self.received = number if self.received is None else self.received
        self._stop.ask("interrupted")

    def leave(self, outcome: str = "") -> None:
        """End the process as the first signal asked for, after everything was closed.

        Args:
            outcome: What became of the run. Python shows it below its traceback, the last thing that is read.
        """
        if self.received == signal.SIGTERM:
            raise SystemExit(EXIT_CODE_TERMINATED)
        if self.received is not None:
            error = KeyboardInterrupt()
            if outcome:
                error.add_note(outcome)
            raise error


def _tell(message: str) -> None:
    """Write to the terminal from within a signal handler, which may have interrupted another write: no logging here."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{message}\n".encode())
