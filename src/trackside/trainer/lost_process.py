"""How a process leaves when another one of its training is gone.

Nothing can be agreed on with a process that is gone. JAX would still try, when this process exits: it waits for the
other at a barrier, and aborts after the heartbeat's timeout, 100 s by default. So this process leaves at once.
"""

import logging
import os
import sys
from collections.abc import Callable

from jax.errors import JaxRuntimeError

LOGGER = logging.getLogger(__name__)

EXIT_CODE_ALONE = 77

_OF_COLLECTIVES = ("gloo", "nccl")
_SIGNS = (*_OF_COLLECTIVES, "closed by peer", "reset by peer", "socket closed", "heartbeat", "coordination service")
"""What errors of collectives say, in lower case. Seen with gloo on CPU; the others are what their sources say."""


def means_lost_process(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, is that of a collective that another process has left."""
    while error is not None:
        text = str(error).lower()
        if isinstance(error, JaxRuntimeError) and any(sign in text for sign in _SIGNS):
            return True
        # In some places JAX raises a ValueError for the same failure.
        if isinstance(error, ValueError) and any(sign in text for sign in _OF_COLLECTIVES):
            return True
        error = error.__cause__ or error.__context__
    return False


def report_lost_process(error: BaseException) -> None:
    """Say that another process is gone, and what to do."""
    lines = str(error).splitlines()
    LOGGER.critical(
        "another process of this training is gone (%s); this one exits with code %d. Start all of them again: with "
        "resume='auto' they continue from the last checkpoint",
        lines[0] if lines else type(error).__name__,
        EXIT_CODE_ALONE,
        exc_info=error,
    )


def leave_alone(exit_process: Callable[[int], object] = os._exit) -> None:
    """End this process now, after its run was closed.

    Args:
        exit_process: Ends the process; given the exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    exit_process(EXIT_CODE_ALONE)
