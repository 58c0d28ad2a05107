"""Findings: rules that turn the measurements of a run into verdicts, each with its evidence and what to do.

Measurements come in as plain data (`RunFacts`), from a run in progress or from an event file; nothing here needs jax or
the training code.
"""

from trackside.findings.facts import EpochFacts, FactCollector, RunFacts, facts_from_events
from trackside.findings.finding import SEVERITIES, Finding, Severity
from trackside.findings.findings_console import render_findings
from trackside.findings.rules import RULES, Rule, find

__all__ = [
    "RULES",
    "SEVERITIES",
    "EpochFacts",
    "FactCollector",
    "Finding",
    "Rule",
    "RunFacts",
    "Severity",
    "facts_from_events",
    "find",
    "render_findings",
]
