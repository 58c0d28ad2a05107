"""A program that another thread compiles while the training's thread continues: XLA lets go of Python's lock meanwhile.

It is traced and lowered on the training's thread, as by its first call, so that errors in the model's code come from
where it is used.
"""

import contextlib
import logging
import threading
from typing import Any

from trackside.jax_internals import config_value
from trackside.measured_run.in_ledger import ProgramCache
from trackside.processes import Processes
from trackside.profiling.compiles import CompileEvent, compile_counter
from trackside.profiling.ledger import Ledger

LOGGER = logging.getLogger(__name__)

THREAD_NAME = "trackside-compile"


class BackgroundProgram:
    """A program that is being compiled.

    Args:
        call: The jitted function.
        args: Its arguments, or their forms.
        label: What its compile is called, unless a call that waits for it has a name of its own.
        ledger: Where the time is booked that the training's thread waits.
        cache: Where compiled programs are kept; None for nowhere.
    """

    def __init__(self, call: Any, args: tuple[Any, ...], label: str, ledger: Ledger, cache: ProgramCache | None):
        self._name, self._label, self._ledger = call.__name__, label, ledger
        self._counter = compile_counter()
        self._event: CompileEvent | None = None
        self._compiled: Any = None
        lowered = call.lower(*args)
        spent = self._counter.hand_over(self._name)
        # Not a daemon: XLA must not be cut off when the interpreter ends.
        self._thread = threading.Thread(target=self._compile, args=(lowered, spent, cache), name=THREAD_NAME)
        self._thread.start()

    def _compile(self, lowered: Any, spent: tuple[float, float], cache: ProgramCache | None) -> None:
        counter, number = self._counter, self._counter.num_compiles
        counter.take_over(self._name, spent, self._label)
        try:
            with contextlib.nullcontext() if cache is None else cache.in_use():
                self._compiled = lowered.compile()
        except Exception:  # the first call fails too, where the user expects it
            LOGGER.debug("%s could not be compiled ahead of its first call", self._name, exc_info=True)
        own = (one for one in counter.events_after(number) if one.thread_id == threading.get_ident())
        self._event = next((one for one in own if one.function == self._name), None)

    def wait(self) -> Any:
        """Wait for the program. From then on, its compile counts as one of this thread.

        Returns:
            What can be called in place of the function; None if it could not be compiled.
        """
        if self._thread.is_alive():
            self._ledger.begin_compiling()
            try:
                self._thread.join()
            finally:
                self._ledger.end_compiling()
        if self._event is not None:
            self._counter.adopt(self._event)
        return self._compiled


def may_compile_in_background(debug: bool, processes: Processes) -> bool:
    """Whether programs may be compiled before they are called.

    Args:
        debug: Whether nothing is compiled.
        processes: Those that train together. If they are several, all of them have to do the same things in one order.
    """
    return not (debug or processes.are_several or config_value("jax_disable_jit"))
