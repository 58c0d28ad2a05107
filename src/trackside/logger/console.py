"""Where log records of trackside go while a run is open: its log file, and the terminal."""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

_FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_CONSOLE_FORMAT = "%(asctime)s %(levelname)s %(message)s"


@contextlib.contextmanager
def root_handlers_kept() -> Iterator[None]:
    """Takes back the handlers that a block gives to the root logger: setting up logging is the program's business."""
    before = list(logging.root.handlers)
    try:
        yield
    finally:
        for handler in [handler for handler in logging.root.handlers if handler not in before]:
            logging.root.removeHandler(handler)


class LogFileHandler(logging.FileHandler):
    """Appends records to a file; a disk that fails is reported once, on stderr, and not for every record."""

    def __init__(self, path: Path):
        super().__init__(path, mode="a", encoding="utf-8", errors="backslashreplace")
        self.setLevel(logging.INFO)
        self.setFormatter(logging.Formatter(_FILE_FORMAT))
        self._has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Report the first failure."""
        if not self._has_failed:
            self._has_failed = True
            sys.stderr.write(f"trackside: the log file {self.baseFilename} cannot be written: {sys.exc_info()[1]}\n")

    def close(self) -> None:
        """Close the file, also on a disk that fails."""
        try:
            super().close()
        except OSError:
            self.handleError(logging.makeLogRecord({}))


class ConsoleHandler(logging.Handler):
    """Writes records to stderr, above a progress bar instead of through it."""

    def __init__(self, propagated: bool = True):
        super().__init__(logging.INFO)
        self.propagated = propagated
        """Whether records went to the root logger before; restored when the handler goes."""
        self.setFormatter(logging.Formatter(_CONSOLE_FORMAT, datefmt="%H:%M:%S"))
        self.num_users = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        from tqdm import tqdm

        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)


class LogOutput:
    """Sends the records of the `trackside` loggers, INFO and up, to a file and the terminal until closed.

    The terminal is left alone where the program has set up logging itself: when the root or the trackside logger has a
    handler, other than the one that a library brings about by its first call of `logging.info`. Runs that are open at
    the same time share one terminal handler. A level that the program has given to the trackside logger is kept.

    Args:
        log_file: The file to append to, if any.
        to_console: Whether to write to the terminal.
    """

    _lock = threading.Lock()
    _num_open = 0
    _level_before = logging.NOTSET

    def __init__(self, log_file: Path | None, to_console: bool):
        self._logger = logging.getLogger("trackside")
        self._file = None if log_file is None else LogFileHandler(log_file)
        with self._lock:
            self._console = self._join_console() if to_console else None
            if self._file is not None:
                self._logger.addHandler(self._file)
            self._raise_level()
        self._closed = False

    def close(self) -> None:
        """Restore handlers and level as they were. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        with self._lock:
            if self._file is not None:
                self._logger.removeHandler(self._file)
                self._file.close()
            self._leave_console()
            LogOutput._num_open -= 1
            if LogOutput._num_open == 0:
                self._logger.setLevel(LogOutput._level_before)

    def _join_console(self) -> ConsoleHandler | None:
        handlers = [*logging.getLogger().handlers, *self._logger.handlers]
        if any(
            not (isinstance(handler, LogFileHandler | ConsoleHandler) or _is_implicit(handler)) for handler in handlers
        ):
            return None
        console = next((handler for handler in handlers if isinstance(handler, ConsoleHandler)), None)
        if console is None:
            console = ConsoleHandler(self._logger.propagate)
            self._logger.addHandler(console)
            # Libraries give the root logger a handler when they first log: each line would be there twice.
            self._logger.propagate = False
        console.num_users += 1
        return console

    def _leave_console(self) -> None:
        if self._console is not None:
            self._console.num_users -= 1
            if self._console.num_users == 0:
                self._logger.removeHandler(self._console)
                self._logger.propagate = self._console.propagated
                self._console.close()

    def _raise_level(self) -> None:
        if LogOutput._num_open == 0:
            LogOutput._level_before = self._logger.level
            if self._logger.level == logging.NOTSET and not self._logger.isEnabledFor(logging.INFO):
                self._logger.setLevel(logging.INFO)
        LogOutput._num_open += 1


def _is_implicit(handler: logging.Handler) -> bool:
    """Whether a handler of the root logger is as `logging` makes it when nobody has: `import grain` leaves one."""
    is_plain = type(handler) is logging.StreamHandler and handler.level == logging.NOTSET
    text_format = getattr(handler.formatter, "_fmt", None)
    return is_plain and text_format == logging.BASIC_FORMAT and logging.root.level == logging.WARNING
