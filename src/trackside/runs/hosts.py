"""The processes of a run side by side: which one the others wait for, and which one has stopped writing.

The processes of a run make each step together, so all have the same step time. A slow one shows in what it does itself,
while the others wait for the device, which waits for the slow one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from trackside.optional import require
from trackside.profiling.ledger_totals import DATA_WAIT, DEVICE_WAIT, OTHER, LedgerTotals, is_once
from trackside.runs.host_collector import HostCollector

MIN_EXCESS_SHARE = 0.05
"""How much of a step the others must wait for a process before it is called slow."""
MIN_DEVIATIONS = 6.0
"""How far it must be from them, in standard deviations as estimated from the median deviation."""
MIN_SILENCE_S = 60.0
"""For how long a process must have written nothing, while the others did, before it is called silent."""

_MAD_TO_DEVIATION = 1.4826


@dataclass(frozen=True)
class Host:
    """One process of a run. Times are seconds per step."""

    process_index: int
    hostname: str
    """The machine that it runs on; empty where that is not known."""
    step: int
    """The last step that it reported."""
    ended_at: float
    """When it wrote its last row, in seconds since the epoch."""
    status: str
    """How it said that it ended; empty while it has not."""
    num_steps: int
    """How many steps the times are of; 0 where none were written."""
    wall_s_per_step: float
    own_s_per_step: float
    """The time without waiting for the device."""
    parts_s_per_step: dict[str, float] = field(default_factory=dict)
    """By part of the ledger."""

    @property
    def data_wait(self) -> float:
        """Waiting for data."""
        return self.parts_s_per_step.get(DATA_WAIT, 0.0)

    @property
    def device_wait(self) -> float:
        """Waiting for the device, and through it for slower processes."""
        return self.parts_s_per_step.get(DEVICE_WAIT, 0.0)

    @property
    def other(self) -> float:
        """What no part of the ledger accounts for."""
        return self.parts_s_per_step.get(OTHER, 0.0)


@dataclass(frozen=True)
class SlowHost:
    """A process that the others wait for. Times are seconds per step."""

    process_index: int
    hostname: str
    own_s_per_step: float
    """Its time without waiting for the device, and without set-up, compiling and closing the tools."""
    median_s_per_step: float
    """The median of the same of the others."""
    part: str
    """The part of the ledger in which it differs most."""
    part_s_per_step: float
    part_median_s_per_step: float
    """What the part takes, and in the median of the others."""
    wall_s_per_step: float = 0.0
    """What a step takes, for all."""
    since_step: int = 0
    """From which step on that holds: 0 for the whole run."""

    @property
    def factor(self) -> float:
        """How many times as long as the others it takes."""
        return self.own_s_per_step / self.median_s_per_step if self.median_s_per_step > 0 else float("inf")

    @property
    def excess_share(self) -> float:
        """The share of a step that the others wait for it."""
        return (self.own_s_per_step - self.median_s_per_step) / self.wall_s_per_step if self.wall_s_per_step else 0.0


@dataclass(frozen=True)
class SilentHost:
    """A process that stopped writing, or ended without a status, while the others continued."""

    process_index: int
    hostname: str
    step: int
    """The last step that it reported."""
    others_step: int
    """The median of the same of the others."""
    silent_s: float
    """How long before the others' last row, in the median, its own was written."""


@dataclass(frozen=True)
class HostTable(Sequence[Host]):
    """The processes of a run, one row each, and those that stand out."""

    hosts: list[Host]
    slow: list[SlowHost] = field(default_factory=list)
    """The slowest first."""
    silent: list[SilentHost] = field(default_factory=list)

    @overload
    def __getitem__(self, index: int) -> Host: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Host]: ...
    def __getitem__(self, index: int | slice) -> Host | Sequence[Host]:
        return self.hosts[index]

    def __len__(self) -> int:
        return len(self.hosts)

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the process as its index; parts of the ledger are seconds per step.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        pandas = require("pandas", "HostTable.to_pandas()")
        rows = [
            {
                "process_index": host.process_index,
                "hostname": host.hostname,
                "step": host.step,
                "status": host.status,
                "wall_s_per_step": host.wall_s_per_step,
                "own_s_per_step": host.own_s_per_step,
                **host.parts_s_per_step,
            }
            for host in self.hosts
        ]
        return pandas.DataFrame(rows).set_index("process_index")


def host_table(processes: Mapping[int, HostCollector]) -> HostTable:
    """The processes of a run side by side.

    Args:
        processes: What is known of each, by its index.
    """
    hosts = [_host(index, rows, rows.totals) for index, rows in processes.items()]
    slow = find_slow(hosts)
    # Those that continued for long enough that one may have become slow; one that died early is not among them.
    windows = {index: window for index, rows in processes.items() if (window := rows.recent)}
    if len(windows) >= 2:
        recent = [_host(index, processes[index], totals) for index, (_, totals) in windows.items()]
        since_step = max(step for step, _ in windows.values())
        named = {host.process_index for host in slow}
        slow += [host for host in find_slow(recent, since_step) if host.process_index not in named]
    return HostTable(hosts, slow, find_silent(hosts))


def find_slow(hosts: Sequence[Host], since_step: int = 0) -> list[SlowHost]:
    """Those that the others wait for, the slowest first.

    Args:
        hosts: The processes.
        since_step: From which step on their times are.
    """
    known = [host for host in hosts if host.num_steps]
    if len(known) < 2:
        return []
    # What happens once says nothing about steps: programs may be in a cache, and one process has the logging tools.
    own = np.array([host.own_s_per_step - _once_s(host) for host in known])
    wall_s = float(np.median([host.wall_s_per_step for host in known]))
    slow = []
    for index in np.flatnonzero(own - np.median(own) >= MIN_EXCESS_SHARE / 2 * wall_s).tolist():
        others = np.delete(own, index)
        median = float(np.median(others))
        deviation = _MAD_TO_DEVIATION * float(np.median(np.abs(others - median)))
        if own[index] - median >= max(MIN_EXCESS_SHARE * wall_s, MIN_DEVIATIONS * deviation):
            slow.append(_slow_host(known, index, float(own[index]), median, wall_s, since_step))
    return sorted(slow, key=lambda host: -host.own_s_per_step)


def find_silent(hosts: Sequence[Host]) -> list[SilentHost]:
    """Those that stopped writing while the others continued, or ended without a status while the others wrote one."""
    if len(hosts) < 2:
        return []
    ended_at = np.array([host.ended_at for host in hosts])
    has_ended = sum(bool(host.status) for host in hosts) > len(hosts) / 2
    silent = []
    for index, host in enumerate(hosts):
        silent_s = float(np.median(np.delete(ended_at, index)) - host.ended_at)
        if not host.status and silent_s > (0.0 if has_ended else MIN_SILENCE_S):
            others_step = int(np.median([other.step for other in hosts if other is not host]))
            silent.append(SilentHost(host.process_index, host.hostname, host.step, others_step, silent_s))
    return silent


def _host(process_index: int, rows: HostCollector, totals: LedgerTotals | None) -> Host:
    base = process_index, rows.hostname, rows.step, rows.ended_at or 0.0, rows.status
    if totals is None or totals.num_steps < 1:
        return Host(*base, 0, 0.0, 0.0)
    parts = {name: seconds / totals.num_steps for name, seconds in totals.parts.items()}
    wall_s = totals.wall_s / totals.num_steps
    return Host(*base, totals.num_steps, wall_s, wall_s - parts.get(DEVICE_WAIT, 0.0), parts)


def _once_s(host: Host) -> float:
    return sum(part_s for part, part_s in host.parts_s_per_step.items() if is_once(part))


def _slow_host(
    hosts: Sequence[Host], index: int, own_s: float, median_s: float, wall_s: float, since_step: int
) -> SlowHost:
    host = hosts[index]
    others = [other.parts_s_per_step for other in hosts if other is not host]
    medians = {
        part: float(np.median([parts.get(part, 0.0) for parts in others]))
        for part in host.parts_s_per_step
        if part != DEVICE_WAIT and not is_once(part)
    }
    part = max(medians, key=lambda name: host.parts_s_per_step[name] - medians[name], default=OTHER)
    return SlowHost(
        host.process_index,
        host.hostname,
        own_s,
        median_s,
        part,
        host.parts_s_per_step.get(part, 0.0),
        medians.get(part, 0.0),
        wall_s,
        since_step,
    )
