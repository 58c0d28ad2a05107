"""Keeps the memory that steps on a CPU have freed for the next ones, instead of giving it back to the system.

A compiled step takes one block for its intermediate results and frees it at its end. glibc hands blocks of more than
32 MB back at once, whatever was freed before, and some smaller ones. So every step gets its block anew, and the system
clears it page by page: 13,000 pages and 15 of 51 ms in a step of a character transformer, and half of a step of 2.4 ms
that takes 5 MB. Whether that happens can be counted, and glibc can be told to keep such blocks. It cannot be told to
keep those of more than 64 MB that are not taken by the main thread; `memory_taken_anew` tells what to do then.
"""

import ctypes
import logging
import math
import os
import sys

from trackside.logger.run_log import RunLog
from trackside.profiling.taken_memory import bytes_taken
from trackside.text import num_bytes

LOGGER = logging.getLogger(__name__)

MIN_BYTES_PER_STEP = 1 << 20
"""Steps that take less anew lose too little to change anything for it."""
MIN_KEPT_BYTES = 128 << 20
"""Blocks up to this size are kept at any rate: a block may be larger than what a step takes of it in the mean."""
FIRST_LOOK, MAX_LOOK = 4, 1024
"""Over how many steps the first look goes, and the longest; each goes over twice as many as the one before."""
_ROOM = 4
"""How many times as large a block may be as what a step takes."""
_MAX_BYTES = 2**31 - 1
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # from malloc.h
_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")


class KeptMemory:
    """Looks how much memory steps take anew from the system, and has it kept where that is much.

    Args:
        run_log: Hears of it.
        is_wanted: Whether it may do anything: steps run on a CPU, and the user does not object.

    Attributes:
        next_step: The step after which to look again.
    """

    def __init__(self, run_log: RunLog, is_wanted: bool):
        self._run_log = run_log
        self._length = FIRST_LOOK
        self._since: tuple[int, int] | None = None
        self.next_step = 0.0 if is_wanted and can_keep() else math.inf

    def break_off(self) -> None:
        """Other things than steps have taken memory: begin to count anew."""
        if self._since is not None:
            self._since, self.next_step = None, 0.0

    def look(self, step: int, taken: int | None = None) -> None:
        """Look, when the host has waited for the device, so that steps go on evenly.

        Args:
            step: The last step that was called.
            taken: How many bytes this process has taken so far; what the system has counted, if left out.
        """
        taken = bytes_taken() if taken is None else taken
        if self._since is not None:
            since_step, taken_before = self._since
            bytes_per_step = (taken - taken_before) / (step - since_step)
            if bytes_per_step >= MIN_BYTES_PER_STEP:
                self._keep(step, bytes_per_step)
                return
            self._length = min(2 * self._length, MAX_LOOK)
        self._since, self.next_step = (step, taken), step + self._length

    def _keep(self, step: int, bytes_per_step: float) -> None:
        self.next_step = math.inf
        if keep_freed_memory(max(MIN_KEPT_BYTES, math.ceil(_ROOM * bytes_per_step))):
            self._run_log.write("memory_kept", step=step, bytes_per_step=round(bytes_per_step))
            LOGGER.info(
                "each step took %s of memory anew from the system; from here on, the process keeps what steps free",
                num_bytes(bytes_per_step),
            )


def can_keep() -> bool:
    """Whether the C library can be told to keep what is freed, and nobody has told it anything about that."""
    is_told = any(name in os.environ for name in _SETTINGS) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    return sys.platform == "linux" and not is_told and hasattr(ctypes.CDLL(None), "mallopt")


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
