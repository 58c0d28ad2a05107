"""The verdicts on a run: from its facts, from its processes side by side, or as the run itself reported them."""

from collections.abc import Iterable, Iterator
from typing import Any

from trackside.findings import SEVERITIES, Finding, RunFacts, find_all, split_silenced
from trackside.runs.host_findings import find_in_hosts
from trackside.runs.hosts import HostTable
from trackside.runs.row_collector import RowCollector


def verdicts_of(
    rows: RowCollector, facts: RunFacts, hosts: HostTable | None, silenced: Iterable[str]
) -> tuple[list[Finding], list[Finding]]:
    """What is found, the most severe first: to be shown, and silenced.

    Args:
        rows: The rows of the run.
        facts: What the rules judge.
        hosts: The processes side by side; None for a run of one.
        silenced: The ids of findings to leave out, in addition to those that the run's config silences.
    """
    # A run without a ledger, as of a loop with timers only, may know more than its rows.
    reported = [] if facts.ledger is not None else list(_reported_findings(rows))
    found = [*(reported or find_all(facts)), *find_in_hosts(hosts)]
    found.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return split_silenced(found, {*facts.silenced, *silenced})


def _reported_findings(rows: RowCollector) -> Iterator[Finding]:
    """The findings of the last leg, as it reported them at its end."""
    last_leg: list[dict[str, Any]] = []
    for row in rows.events("leg", "finding"):
        last_leg = [] if row["kind"] == "leg" else [*last_leg, row]
    for row in last_leg:
        try:
            yield Finding.from_dict(row)
        except (TypeError, ValueError):  # of an older format
            continue
