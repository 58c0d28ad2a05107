"""Verdicts on single processes of a run, which only a reader of all event files can give."""

from collections.abc import Iterator

from trackside.findings import Finding
from trackside.profiling.ledger_text import part_name
from trackside.runs.hosts import HostTable, SilentHost, SlowHost
from trackside.text import percent, seconds

MIN_SEVERE_SHARE = 0.2
"""It is severe if the others wait for at least this share of a step."""
MAX_FINDINGS = 8
"""If many processes stand out, these are enough; the table of hosts has all of them."""


def find_in_hosts(hosts: HostTable | None) -> Iterator[Finding]:
    """What is wrong with single processes.

    Args:
        hosts: The processes; None for a run of one.
    """
    if hosts is not None:
        yield from (_slow_host(host) for host in hosts.slow[:MAX_FINDINGS])
        yield from (_silent_host(host) for host in hosts.silent[:MAX_FINDINGS])


def _slow_host(host: SlowHost) -> Finding:
    since = f", since step {host.since_step:,}" if host.since_step else ""
    return Finding(
        "slow_host",
        "severe" if host.excess_share >= MIN_SEVERE_SHARE else "warning",
        f"the other processes wait {percent(host.excess_share)} of each step for {_label(host)}{since}",
        {
            "own_per_step_s": host.own_s_per_step,
            "others_median_per_step_s": host.median_s_per_step,
            "excess_share": host.excess_share,
            "part": host.part,
            "part_per_step_s": host.part_s_per_step,
            "others_median_part_per_step_s": host.part_median_s_per_step,
        },
        f"check or replace that machine: {part_name(host.part)} takes {seconds(host.part_s_per_step)} per step there, "
        f"against a median of {seconds(host.part_median_s_per_step)} on the others",
        f"process {host.process_index}",
    )


def _silent_host(host: SilentHost) -> Finding:
    return Finding(
        "silent_host",
        "severe",
        f"{_label(host)} stopped writing {seconds(host.silent_s)} before the others, at step {host.step:,}",
        {"silent_s": host.silent_s, "last_step": host.step, "others_last_step": host.others_step},
        "check the log of that process and its machine: it is stuck or dead",
        f"process {host.process_index}",
    )


def _label(host: SlowHost | SilentHost) -> str:
    return f"process {host.process_index} ({host.hostname})" if host.hostname else f"process {host.process_index}"
