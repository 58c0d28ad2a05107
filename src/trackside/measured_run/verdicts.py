"""The verdicts on a run while it trains and at its end, from the facts of its run log."""

import logging

from trackside.findings import Finding, find, find_all, render_findings, split_silenced
from trackside.logger.run_log import RunLog

LOGGER = logging.getLogger(__name__)


class Verdicts:
    """Says what is wrong with a run, except for what its config silences.

    Args:
        run_log: The run's rows, on whose facts the verdicts rest.
    """

    def __init__(self, run_log: RunLog):
        self._run_log = run_log
        self._said: set[tuple[str, str]] = set()

    def warn_if_severe(self) -> None:
        """Say what is badly wrong while there is time to do something about it, once."""
        for finding in find(self._run_log.facts()):
            if finding.severity == "severe" and finding.key not in self._said:
                self._said.add(finding.key)
                LOGGER.warning("%s", finding.message)

    def conclude(self) -> list[Finding]:
        """Write all findings to the run log and the console."""
        facts = self._run_log.facts()
        findings, silenced = split_silenced(find_all(facts), facts.silenced)
        for finding in findings:
            self._run_log.write("finding", **finding.to_dict())
        if findings or silenced:
            LOGGER.info("%s", render_findings(findings, silenced=silenced).plain)
        return findings
