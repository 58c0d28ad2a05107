"""On a CPU, keeps the memory that a step frees for the next one, instead of giving it back to the operating system.

A compiled step allocates a block for its intermediate results and frees it at its end. glibc gives blocks of more than
32 MB back to the system at once, and some smaller ones. So every step gets fresh memory, which the system has to clear
page by page: 13,000 pages and 15 of 51 ms in a step of a character transformer, and half of a step of 2.4 ms that gets
5 MB. Fresh memory can be counted, and glibc can be told to keep such blocks. It cannot be told to keep blocks of more
than 64 MB that another thread than the main one allocates; the finding `memory_not_reused` says what to do about these.
"""

import ctypes
import logging
import math
import os
import sys

from trackside.logger.run_log import RunLog
from trackside.profiling.fresh_memory import fresh_bytes
from trackside.text import num_bytes

LOGGER = logging.getLogger(__name__)

MIN_BYTES_PER_STEP = 1 << 20
"""Less fresh memory than this takes too little time to change anything."""
MIN_KEPT_BYTES = 128 << 20
"""Blocks up to this size are kept in any case: a block may be larger than the fresh memory of an average step."""
FIRST_LOOK, MAX_LOOK = 4, 1024
"""How many steps the first verdict covers, and the most that one covers; each covers twice as many as the last."""
_ROOM = 4
"""How many times as large as the fresh memory of a step a block may be."""
_MAX_BYTES = 2**31 - 1
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # from malloc.h
_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")


class KeptMemory:
    """Counts the fresh memory of steps, and has freed memory kept if it is a lot.

    The first steps do not count: they get memory for the first time.

    Args:
        run_log: Gets a row when memory is kept.
        is_wanted: Whether steps run on a CPU, and the user does not object.

    Attributes:
        next_step: The step after which to call `look` again.
    """

    def __init__(self, run_log: RunLog, is_wanted: bool):
        self._run_log = run_log
        self._length = FIRST_LOOK
        self._is_warm = False
        self._since: tuple[int, int] | None = None
        self._num_steps = self._num_bytes = 0
        self.next_step = 0.0 if is_wanted and can_keep() else math.inf

    def look(self, step: int, so_far: int | None = None) -> None:
        """Count the fresh memory of the last steps.

        Args:
            step: The last step that was called.
            so_far: How many bytes of fresh memory this process has got; if left out, as many as the system has counted.
        """
        if self._is_warm:
            self._count(step, fresh_bytes() if so_far is None else so_far)
        else:
            self._is_warm, self.next_step = True, step + FIRST_LOOK

    def break_off(self, step: int, so_far: int | None = None) -> None:
        """Count up to here, and go on with the next look: until then, others than steps may get memory.

        Args:
            step: The last step that was called.
            so_far: As in `look`.
        """
        if self._since is not None:
            self._count(step, fresh_bytes() if so_far is None else so_far)
        self.leave_out()

    def leave_out(self) -> None:
        """Do not count what was allocated since the last look, such as by a compilation."""
        if self._since is not None:
            self._since, self.next_step = None, 0.0

    def _count(self, step: int, so_far: int) -> None:
        if self._since is not None:
            since_step, before = self._since
            self._num_steps += step - since_step
            self._num_bytes += so_far - before
        self._since = step, so_far
        if self._num_steps >= self._length:
            bytes_per_step = self._num_bytes / self._num_steps
            if bytes_per_step >= MIN_BYTES_PER_STEP:
                self._keep(step, bytes_per_step)
                return
            self._length, self._num_steps, self._num_bytes = min(2 * self._length, MAX_LOOK), 0, 0
        self.next_step = step + self._length - self._num_steps

    def _keep(self, step: int, bytes_per_step: float) -> None:
        self._since, self.next_step = None, math.inf
        if keep_freed_memory(max(MIN_KEPT_BYTES, math.ceil(_ROOM * bytes_per_step))):
            self._run_log.write("memory_kept", step=step, bytes_per_step=round(bytes_per_step))
            LOGGER.info(
                "each step got %s of fresh memory from the operating system; from now on, the process keeps the memory "
                "that steps free",
                num_bytes(bytes_per_step),
            )


def can_keep() -> bool:
    """Whether the C library can be told to keep freed memory, and the user has not set anything about that."""
    is_set = any(name in os.environ for name in _SETTINGS) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    return sys.platform == "linux" and not is_set and hasattr(ctypes.CDLL(None), "mallopt")


def keep_freed_memory(size: int) -> bool:
    """Have glibc keep blocks up to a size when they are freed.

    Args:
        size: That of the largest block, in bytes.

    Returns:
        Whether it does.
    """
    mallopt = ctypes.CDLL(None).mallopt
    is_kept = mallopt(_MMAP_THRESHOLD, min(size, _MAX_BYTES))
    return bool(is_kept and mallopt(_TRIM_THRESHOLD, min(2 * size, _MAX_BYTES)))
