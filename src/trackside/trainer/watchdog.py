"""Ends a training that hangs, and shows where."""

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Self

LOGGER = logging.getLogger(__name__)

EXIT_CODE_HUNG = 78


class Watchdog:
    """While open, dumps the stacks of all threads and ends the process when no step completes for too long.

    Args:
        timeout_s: The limit in seconds; 0 or less for no watchdog.
        read_progress: Gives a number that grows with every step and every batch that is evaluated.
        exit_process: Ends the process; given the exit code.
    """

    def __init__(
        self, timeout_s: float, read_progress: Callable[[], int], exit_process: Callable[[int], object] = os._exit
    ):
        self._timeout_s = timeout_s
        self._read_progress = read_progress
        self._exit_process = exit_process
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        if self._timeout_s > 0:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed.set()

    def _watch(self) -> None:
        last = self._read_progress()
        while not self._closed.wait(self._timeout_s):
            progress = self._read_progress()
            if progress == last:
                self._give_up(progress)
                return
            last = progress

    def _give_up(self, step: int) -> None:
        LOGGER.critical(
            "nothing has moved in %g s (%d steps and evaluated batches so far); the process ends", self._timeout_s, step
        )
        faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
        self._exit_process(EXIT_CODE_HUNG)
