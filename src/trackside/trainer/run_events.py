"""The rows of a run as they are written, and what they add up to."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trackside.findings import Finding, find, render_findings
from trackside.findings.facts import FactCollector, RunFacts
from trackside.logger import Logger

LOGGER = logging.getLogger(__name__)


class RunEvents:
    """Writes rows to the event file, whichever is open, and keeps the facts that verdicts are made of.

    Args:
        get_logger: The run's logger, which may be closed and opened again.
    """

    def __init__(self, get_logger: Callable[[], Logger]):
        self._get_logger = get_logger
        self._collector = FactCollector()
        self._told: set[tuple[str, str]] = set()

    def write(self, kind: str, **fields: Any) -> None:
        """Write a row, if there is a file, and take note of it."""
        logger = self._get_logger()
        if logger.is_open:
            logger.events.write(kind, **fields)
        self.note(kind, **fields)

    def note(self, kind: str, **fields: Any) -> None:
        """Take note of a row that somebody else writes."""
        self._collector.add({"kind": kind, **fields})

    def facts(self, step_time_s: float | None) -> RunFacts:
        """What is known of the run by now.

        Args:
            step_time_s: The median time of the last steps that nothing disturbed.
        """
        cadence = self._get_logger().config.log_every_n_steps
        return replace(self._collector.facts(), step_time_s=step_time_s, log_every_n_steps=cadence)

    def warn_if_severe(self, step_time_s: float | None) -> None:
        """Say what is badly wrong while there is time to do something about it, once."""
        for finding in find(self.facts(step_time_s)):
            if finding.severity == "severe" and finding.key not in self._told:
                self._told.add(finding.key)
                LOGGER.warning("%s", finding.message)

    def tell_findings(self, step_time_s: float | None) -> list[Finding]:
        """Write all findings to the event file and the log."""
        findings = find(self.facts(step_time_s))
        for finding in findings:
            self.write("finding", **finding.to_dict())
        if findings:
            LOGGER.info("%s", render_findings(findings).plain)
        return findings
