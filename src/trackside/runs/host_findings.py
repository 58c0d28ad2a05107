"""Verdicts on the processes of a run, which only a reader of all event files can give."""

from collections.abc import Iterator

from trackside.findings import Finding
from trackside.profiling.ledger_text import part_name
from trackside.runs.hosts import HostTable, SilentHost, SlowHost
from trackside.text import percent, seconds

MIN_SEVERE_SHARE = 0.2
"""From which share of a step on that the others wait it is severe."""
MAX_FINDINGS = 8
"""Where many processes stand out, these tell enough; the table of hosts has all."""


def find_in_hosts(hosts: HostTable | None) -> Iterator[Finding]:
    """What is wrong with single processes.

    Args:
        hosts: The processes; None for a run of one.
    """
    if hosts is not None:
        yield from (_slow_host(host) for host in hosts.slow[:MAX_FINDINGS])
        yield from (_silent_host(host) for host in hosts.silent[:MAX_FINDINGS])


def _slow_host(host: SlowHost) -> Finding:
    since = f" since step {host.since_step:,}" if host.since_step else ""
    return Finding(
        "slow_host",
        "severe" if host.excess_share >= MIN_SEVERE_SHARE else "warning",
        f"{_label(host)} holds up the others for {percent(host.excess_share)} of each step{since}",
        {
            "own_per_step_s": host.own_s_per_step,
            "others_median_per_step_s": host.median_s_per_step,
            "excess_share": host.excess_share,
            "part": host.part,
            "part_per_step_s": host.part_s_per_step,
            "others_median_part_per_step_s": host.part_median_s_per_step,
        },
        f"look at that machine, or replace it: {part_name(host.part)} takes {seconds(host.part_s_per_step)} per step "
        f"there, and {seconds(host.part_median_s_per_step)} in the median of the others",
        f"process {host.process_index}",
    )


def _silent_host(host: SilentHost) -> Finding:
    return Finding(
        "silent_host",
        "severe",
        f"{_label(host)} wrote its last row {seconds(host.silent_s)} before the others, at step {host.step:,}",
        {"silent_s": host.silent_s, "last_step": host.step, "others_last_step": host.others_step},
        "look at the log of that process and at its machine: it is stuck or dead",
        f"process {host.process_index}",
    )


def _label(host: SlowHost | SilentHost) -> str:
    return f"process {host.process_index} ({host.hostname})" if host.hostname else f"process {host.process_index}"
