"""A block of a loop whose time is shown under a name of its own."""

from trackside.clock import Clock
from trackside.errors import ConfigError
from trackside.logger import Logger
from trackside.measured_run.call_book import CallBook
from trackside.measured_run.host_time import HostTime
from trackside.measured_run.logged_values import MODES
from trackside.profiling.ledger_totals import CALLBACK, CHECKPOINTING, COMPILE, DISPATCH, DRAIN, OTHER, VALIDATION

TEST = "test"
APART = (VALIDATION, TEST, CHECKPOINTING)
"""Parts that are no training: steps before and after them do not follow each other."""
_TAKEN = (COMPILE, DISPATCH, OTHER)


def checked_name(name: str) -> str:
    """A name that a part can have.

    Raises:
        ConfigError: It cannot.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"run.part: expected a name such as 'validation', got {name!r}")
    if name in _TAKEN or name.startswith((CALLBACK, DRAIN)):
        raise ConfigError(f"run.part: {name!r} is measured already; choose another name, such as 'augmentation'")
    return name


class Part:
    """A block with a name in the ledger. Made by `run.part`.

    Args:
        name: The name.
        host: What the host does.
        book: The calls, which a block that is no training interrupts.
        logger: Leaves such a block out of the logged step times.
        clock: Where times come from.
    """

    def __init__(self, name: str, host: HostTime, book: CallBook, logger: Logger, clock: Clock):
        self._name = name
        self._host = host
        self._book = book
        self._logger = logger
        self._now = clock.now
        self._outer: list[tuple[str, str, float]] = []
        """Where the thread was when it entered, and when that was; several if the block is inside of itself."""

    def __enter__(self) -> None:
        host = self._host
        if not host.is_own_thread:
            return
        if self._name in APART:
            self._book.interrupt(is_validation=self._name != CHECKPOINTING)
        self._outer.append((host.enter(self._name), host.mode, self._now()))
        host.mode = MODES.get(self._name, host.mode)
        host.depth += 1

    def __exit__(self, *exception: object) -> None:
        host = self._host
        if not self._outer or not host.is_own_thread:
            return
        before, host.mode, began_s = self._outer.pop()
        host.depth -= 1
        host.leave(before)
        is_inside = before in APART or host.mode != "train"  # then the block around it leaves out all of it
        if self._name in APART and not is_inside:
            self._logger.exclude_span(began_s, self._now())
