"""How busy the processors were with this program and with others, as the operating system counts it.

Step times alone do not show whether another program had a part of the machine all the time. On Linux the kernel counts
what each processor did; elsewhere nothing is known.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackside.clock import SYSTEM_CLOCK, Clock

PROC = Path("/proc")
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)  # user, nice, system, interrupts of both kinds, and what a hypervisor gave to others


@dataclass(frozen=True)
class ProcessorUse:
    """What the processors that a program may use did over a while."""

    wall_s: float
    """How long that was."""
    own_s: float
    """Processor time of the program and of the processes that it started."""
    other_s: float
    """Processor time of all others."""
    num_processors: int
    """How many there are."""

    @property
    def own(self) -> float:
        """How many processors the program used, in the mean."""
        return self.own_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def other(self) -> float:
        """How many processors others used, in the mean."""
        return self.other_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def idle(self) -> float:
        """How many processors did nothing, in the mean."""
        return max(self.num_processors - self.own - self.other, 0.0)

    def plus(self, other: "ProcessorUse") -> "ProcessorUse":
        """This and another while together, such as two legs of a training."""
        return ProcessorUse(
            self.wall_s + other.wall_s,
            self.own_s + other.own_s,
            self.other_s + other.other_s,
            max(self.num_processors, other.num_processors),
        )

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "ProcessorUse":
        """Back from plain values, among which there may be others."""
        return cls(**{name: plain[name] for name in cls.__dataclass_fields__})


class ProcessorMeter:
    """Measures the use of the processors from the moment it is made.

    Args:
        clock: What measures the time meanwhile.
        proc: Where the kernel tells.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, proc: Path = PROC):
        self._now = clock.now
        self._proc = proc
        self._usable = _usable_processors()
        self._began = self._read()

    def use(self) -> ProcessorUse | None:
        """What happened since then; None where the operating system does not tell."""
        now = self._read()
        if now is None or self._began is None:
            return None
        wall_s, busy_s, own_s = (later - earlier for later, earlier in zip(now, self._began, strict=True))
        if wall_s <= 0:
            return None
        # Own time is counted exactly and the processors' in ticks, so that over a short while it may be the larger one.
        own_s = max(own_s, 0.0)
        return ProcessorUse(wall_s, own_s, max(busy_s - own_s, 0.0), len(self._usable))

    def _read(self) -> tuple[float, float, float] | None:
        """The time, the time that the usable processors were busy, and that of this process and those it started."""
        try:
            busy_s = sum(_busy_seconds(self._proc, self._usable))
            own_s = sum(os.times()[:4]) + sum(_seconds_of(self._proc, pid) for pid in _descendants(self._proc))
        except (OSError, ValueError, IndexError):
            return None
        return self._now(), busy_s, own_s


def _usable_processors() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _busy_seconds(proc: Path, usable: frozenset[int]) -> Iterator[float]:
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    for line in (proc / "stat").read_text().splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name != "cpu" and int(name.removeprefix("cpu")) in usable:
            yield sum(int(columns[index]) for index in _BUSY_COLUMNS) / ticks_per_s


def _descendants(proc: Path) -> Iterator[int]:
    """The processes that this one started, such as workers of a loader, and those that these started."""
    waiting = [os.getpid()]
    while waiting:
        started = list(_children(os.path.join(proc, str(waiting.pop()), "task")))
        waiting += started
        yield from started


def _children(threads: str) -> Iterator[int]:
    """The processes that the threads of a process have started. Without pathlib, which takes longer than the files."""
    with contextlib.suppress(OSError):  # the process has ended
        for thread in os.listdir(threads):
            with contextlib.suppress(OSError), open(os.path.join(threads, thread, "children")) as children:
                yield from [int(pid) for pid in children.read().split()]


def _seconds_of(proc: Path, pid: int) -> float:
    """Processor time of a process and of those that it waited for; 0 if it has ended."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return 0.0
    columns = text.rpartition(")")[2].split()  # a name may hold anything, so count from behind it
    return sum(int(ticks) for ticks in columns[11:15]) / os.sysconf("SC_CLK_TCK")
