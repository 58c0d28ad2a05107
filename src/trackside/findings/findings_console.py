"""Findings for the console: the verdict first, then the evidence and what to do."""

from collections.abc import Sequence

from rich.text import Text

from trackside.findings.finding import SEVERITIES, Finding
from trackside.findings.silencing import silenced_text
from trackside.text import count, evidence_value, wrap

_STYLES = {"severe": "bold red", "warning": "yellow", "info": "cyan"}
_MARGIN = " " * 9
_UNBROKEN = "\xa0"


def render_findings(findings: Sequence[Finding], width: int = 80, silenced: Sequence[Finding] = ()) -> Text:
    """What the console shows of findings: how many, and each with its evidence and advice.

    Args:
        findings: The findings, in the order in which to show them.
        width: The columns that they may take.
        silenced: Findings that are not shown; how many, and which.

    Returns:
        A text that a rich console prints in colors; its `plain` is the text without them.
    """
    text = Text(_headline(findings), style="bold")
    for finding in findings:
        text.append("\n\n")
        text.append(f"{finding.severity:<{len(_MARGIN)}}", style=_STYLES[finding.severity])
        text.append(_wrapped(f"{finding.label}: {finding.title}", width), style="bold")
        if finding.evidence:
            text.append("\n" + _MARGIN)
            text.append(_wrapped(_evidence(finding), width), style="dim not bold")
        text.append("\n" + _MARGIN)
        text.append(_wrapped(f"-> {finding.advice}", width), style="not bold")
    if silenced:
        text.append("\n\n" if findings else "\n")
        text.append("\n".join(wrap(silenced_text(silenced), width)), style="dim not bold")
    return text


def _headline(findings: Sequence[Finding]) -> str:
    if not findings:
        return "No findings"
    numbers = [(severity, sum(one.severity == severity for one in findings)) for severity in SEVERITIES]
    listed = ", ".join(_number_of(severity, number) for severity, number in numbers if number)
    return f"{count(len(findings), 'finding')}: {listed}"


def _number_of(severity: str, number: int) -> str:
    return count(number, severity) if severity == "warning" else f"{number} {severity}"


def _evidence(finding: Finding) -> str:
    figures = (
        f"{name.removesuffix('_s').replace('_', ' ')} {evidence_value(name, value)}"
        for name, value in finding.evidence.items()
    )
    return ", ".join(figure.replace(" ", _UNBROKEN) for figure in figures)


def _wrapped(text: str, width: int) -> str:
    """The text in lines that fit next to the margin, with which all but the first begin."""
    return f"\n{_MARGIN}".join(wrap(text, width - len(_MARGIN)))
