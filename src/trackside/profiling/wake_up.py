"""When an array was ready, as seen by a thread that waits for it and wakes up late.

A thread wakes up late where all cores are taken: by milliseconds on a busy machine, while a step may take as long. The
kernel counts how long a thread was ready to run and had no core. If it got a core once only since it began to wait,
that is how late it is. If it got one more often, it also had to wait for something else, such as Python's lock, or lost
the core before it began to wait, and how late it is cannot be known.
"""

import contextlib
import os
import threading
from typing import Any, NamedTuple

from trackside.clock import Clock, SystemClock

_SCHEDSTAT = "/proc/thread-self/schedstat"


class Cores(NamedTuple):
    """What a thread went through so far."""

    waited_s: float
    """How long it was ready to run and had no core."""
    num_given: int
    """How often it got one."""


class Waiter:
    """Waits for arrays, and says when they were ready.

    Args:
        clock: Where times come from. On any clock but the machine's, nobody is late.
    """

    def __init__(self, clock: Clock):
        self._now, self._is_real = clock.now, isinstance(clock, SystemClock)
        self._thread: int | None = None
        self._file: int | None = None

    def wait_for(self, array: Any) -> tuple[float, bool]:
        """Wait for an array.

        Returns:
            When it was ready, and whether that is exact; if not, it was ready earlier than that.
        """
        before = self.read()
        array.block_until_ready()
        ready_s = self._now()
        late_s = late_by(before, self.read())
        return (ready_s, False) if late_s is None else (ready_s - late_s, True)

    def close(self) -> None:
        """Close the file that is read. It is opened again when needed."""
        if self._file is not None:
            os.close(self._file)
        self._file = self._thread = None

    def read(self) -> Cores | None:
        """What this thread went through, which takes two microseconds; None where the kernel does not say."""
        if self._thread != threading.get_ident():
            self.close()
            self._thread = threading.get_ident()
            if self._is_real:
                with contextlib.suppress(OSError):
                    self._file = os.open(_SCHEDSTAT, os.O_RDONLY)  # stays that of the thread that opens it
        if self._file is None:
            return None
        _, waited_ns, num_given = os.pread(self._file, 128, 0).split()
        return Cores(int(waited_ns) * 1e-9, int(num_given))


def late_by(before: Cores | None, after: Cores | None) -> float | None:
    """How late a thread woke up, from what it had gone through before it waited and after; None if that is not known.

    Where nobody counts, it is taken to be in time.
    """
    if before is None or after is None:
        return 0.0
    return after.waited_s - before.waited_s if after.num_given - before.num_given <= 1 else None
