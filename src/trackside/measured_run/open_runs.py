"""The runs of this process that are open: none of them stays open when the process ends, or its cell is run again.

SIGTERM would end the process at once, and leave runs that look killed. While a run is open, it ends the program as
`sys.exit` does instead, so that `with` blocks are left and files closed; unless the program handles it in its own way.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

EXIT_CODE_TERMINATED = 128 + signal.SIGTERM


class OpenRun(Protocol):
    """A run that is open."""

    @property
    def path(self) -> Path | None:
        """Its folder."""
        ...

    wanted_path: Path | None
    """The folder that it was opened with, which may have held another run."""
    is_entered: bool
    """Whether it is used in a `with` block."""

    def close(self, status: str = "success") -> None:
        """Close it."""
        ...


_open: list[OpenRun] = []
_pid = os.getpid()
_catches = False
_was_terminated = False


def register(run: OpenRun, catches_sigterm: bool) -> None:
    """Take note of a run that was opened."""
    global _pid, _catches, _was_terminated
    _pid = os.getpid()
    _open.append(run)
    is_main = threading.current_thread() is threading.main_thread()
    if not _catches:
        _was_terminated = False
    if catches_sigterm and not _catches and is_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)
        _catches = True


def unregister(run: OpenRun) -> None:
    """A run was closed."""
    global _catches
    with contextlib.suppress(ValueError):
        _open.remove(run)
    if _catches and not _open and threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGTERM) == _on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _catches = False


def close_abandoned(path: Path) -> OpenRun | None:
    """Close a run that was opened with this folder, or is in it, and that a notebook's cell has left open.

    The cell is run again. Its last run may have gone to another folder, since the one before it was in this one.

    Returns:
        The run; None if there is none, or it is in use in a `with` block.
    """
    if not _is_interactive():
        return None
    for run in list(_open):
        folders = [one.resolve() for one in (run.path, run.wanted_path) if one is not None]
        if path.resolve() in folders and not run.is_entered:
            run.close()
            return run
    return None


def status_of(error: BaseException | None) -> str:
    """How a run ended, by what has ended its `with` block or its process."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "success"
    if isinstance(error, KeyboardInterrupt) or (_was_terminated and isinstance(error, SystemExit)):
        return "interrupted"
    return "error"


def is_other_process() -> bool:
    """Whether this process was forked from the one that opened the runs, as workers of loaders are."""
    return os.getpid() != _pid


def watch_cells(on_begin: Callable[[], None], on_end: Callable[[], None]) -> Callable[[], None]:
    """In a notebook, hear when a cell begins and ends to run.

    Returns:
        Ends that.
    """
    events = getattr(_shell(), "events", None)
    if events is None:
        return lambda: None

    def begin(*args: Any) -> None:
        del args
        on_begin()

    def end(*args: Any) -> None:
        del args
        on_end()

    events.register("pre_run_cell", begin)
    events.register("post_run_cell", end)

    def stop() -> None:
        for name, function in (("pre_run_cell", begin), ("post_run_cell", end)):
            with contextlib.suppress(ValueError):
                events.unregister(name, function)

    return stop


def _shell() -> Any:
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def _is_interactive() -> bool:
    return _shell() is not None or hasattr(sys, "ps1")


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    global _was_terminated
    del frame
    if is_other_process():  # a worker, which is not to close the runs of its parent
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    _was_terminated = True
    raise SystemExit(EXIT_CODE_TERMINATED)


def raise_if_terminated() -> None:
    """End the program if SIGTERM came and it still runs: Python ignores what is raised in some places."""
    if _was_terminated and _catches:
        raise SystemExit(EXIT_CODE_TERMINATED)


def _close_all() -> None:
    """At the end of the process, close what was left open."""
    if is_other_process():
        return
    error = getattr(sys, "last_value", None) if not _is_interactive() else None
    status = "interrupted" if _was_terminated else status_of(error)
    for run in list(_open):
        run.close(status)


atexit.register(_close_all)
