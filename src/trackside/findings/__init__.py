"""Findings: rules that turn the measurements of a run into verdicts, each with its evidence and what to do.

Measurements come in as plain data (`RunFacts`), from a run in progress or from an event file; nothing here needs jax or
the training code.
"""

from trackside.findings.fact_collector import FactCollector, facts_from_events
from trackside.findings.facts import EpochFacts, RunFacts, ToolFacts
from trackside.findings.finding import SEVERITIES, Finding, Severity
from trackside.findings.findings_console import render_findings
from trackside.findings.loader_facts import LoaderFacts
from trackside.findings.rules import RULES, Rule, find, find_all
from trackside.findings.silencing import FINDING_IDS, split_silenced

__all__ = [
    "FINDING_IDS",
    "RULES",
    "SEVERITIES",
    "EpochFacts",
    "FactCollector",
    "Finding",
    "LoaderFacts",
    "Rule",
    "RunFacts",
    "Severity",
    "ToolFacts",
    "facts_from_events",
    "find",
    "find_all",
    "render_findings",
    "split_silenced",
]
